/* The watch of a source. See source_watch.c. */
#pragma once

#include "agent/intake/source.h"

void source_watch_init(IntakeContext *c);
void source_watch_done(IntakeSource *s);
/** Starts the watch after a scan, unless the source is only to be scanned.
 * @param network_fs  the name of the network file system that it is on; NULL: none */
void source_watch_start(IntakeSource *s, const char *network_fs);
