/* The threads of a process. */
#pragma once

#include "collectors/host/process_report.h"

/** Writes a record about all threads, and one for each. Never waits. */
void process_threads_record(ProcessReport *report);
