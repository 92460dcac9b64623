/* What has changed between two snapshots. */
#pragma once

/** Compares the values of two files of records, and writes a line for each that differs: `{"path",
 * "before", "after", "delta"}`. delta is only between two numbers; `before` or `after` is null
 * where the value did not exist. A value is a member of `values` in a record; its path is the
 * record's `device` and `directory` and the member's name. Other records, and bad lines, are
 * ignored.
 * @param dir_fd  has all three files; `out` replaces an older one; `before` and `after` may be
 *   missing, and have no values then
 * @return 0; -EFBIG: there are more values than can be compared, and the rest is not; -errno: one
 *   of the two cannot be read, or `out` cannot be written */
int differences_write(int dir_fd, const char *before, const char *after, const char *out);
