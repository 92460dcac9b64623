/* What a program or library says of itself in its notes: its build id, and the package that it was
 * built for. Pure. */
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

/** Finds the text of `.note.package` among notes: a JSON object, not verified.
 * @param ret  unchanged when there is none, or one that is longer
 * @see https://systemd.io/PACKAGE_METADATA_FOR_EXECUTABLE_FILES/ */
void package_note_parse(const uint8_t *notes, size_t n, uint64_t align,
                        char ret[static ELF_PACKAGE_SIZE]);
