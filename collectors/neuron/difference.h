/* What has changed between two looks at the same values: counters of sysfs before and after a process has exited. */
#pragma once

/** Compares the values of two files of records, and writes a line for each that differs: `{"path", "before", "after", "delta"}`; delta only between two
 * numbers, `before` or `after` null where there was none. A value is a member of `values` in a record, its path is the record's `device` and `directory` and
 * the member's name; or it is `value` in a record with `path`. Other records are passed over, bad lines too.
 * @param dir_fd  where all three are; `out` is made anew  @return 0, -EFBIG with more values than can be kept (what was kept is compared), -errno */
int difference_write(int dir_fd, const char *before, const char *after, const char *out);
