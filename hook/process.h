/* The hook's own process: what it inherits is put right, and nobody waits for what its end closes. */
#pragma once

/** First of all. Signals, the umask and 0, 1 and 2 are what the rest counts on, whoever called us. Other inherited descriptors are closed; where that takes
 * long (a device that is being reset, a file on a server that is gone) it is left to another process, and what could not be closed is not passed on
 * to a program that we start. Takes 30 ms at most. */
void hook_process_start(void);

/** Last of all: what is still open, 0, 1 and 2 with it, is not closed by our exit, so that whoever waits for that does not wait for a close. */
void hook_process_exit(void);
