/* A part of the collector process: the build id of a library that a process has mapped. */
#pragma once

#define PROCESS_BUILD_ID_SIZE 129

/** Finds the GNU build id of a 64-bit ELF file of this machine's byte order, reading little of it.
 * @param fd  a regular file, hostile  @param hex  gets it in hex, "" when it has none @return 0,
 * -EBADMSG when it is no such file, -errno
 * @see elf(5); the note NT_GNU_BUILD_ID */
int process_build_id(int fd, char hex[static PROCESS_BUILD_ID_SIZE]);
