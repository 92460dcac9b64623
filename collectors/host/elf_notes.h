/* The notes of a program or library: its build id, and the package that it was built for. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define ELF_BUILD_ID_MAX 64
#define ELF_PACKAGE_SIZE 1024

typedef struct BuildId {
        uint8_t bytes[ELF_BUILD_ID_MAX];
        size_t n; /* 0 = there is none */
} BuildId;

/** Finds the build id among notes. @param align  of their segment  @param ret  unchanged when there
 * is none */
void build_id_parse(const uint8_t *notes, size_t n, uint64_t align, BuildId *ret);

/** Finds the GNU build id of a 64-bit ELF file of this machine's byte order, reading little of it.
 * @param fd  a regular file, hostile  @param ret  unchanged when it has none
 * @return 0, -EBADMSG when it is no such file, -errno */
int build_id_read(int fd, BuildId *ret);

/** Finds the text of `.note.package` among notes: a JSON object, not verified.
 * @param ret  unchanged when there is none, or one that is longer
 * @see https://systemd.io/PACKAGE_METADATA_FOR_EXECUTABLE_FILES/ */
void package_note_parse(const uint8_t *notes, size_t n, uint64_t align,
                        char ret[static ELF_PACKAGE_SIZE]);
