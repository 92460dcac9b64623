/* The crash report of a process that the OOM killer of the kernel has killed. */
#pragma once

#include "agent/node_events/kernel_log.h"
#include "lib/base/strbuf.h"

/** Writes the report. @param kill  as the line says; gets its cgroup
 * @param job  JSON or NULL  @param json, text  of crash.json and crash.md */
void oom_report_write(const KernelLog *l, const KernelLine *line, OomKill *kill, const char *job,
                      StrBuf *json, StrBuf *text);
