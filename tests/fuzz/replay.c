/* main() for a fuzz target that is not built with libFuzzer: feeds it every file of its corpus and
 * speaks TAP. A crash of the target is the test's failure; the last comment names the input.
 *
 *   tests/fuzz/fuzz_neff [DIRECTORY]      default: $srcdir/tests/fuzz/corpus/neff */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/cleanup.h"
#include "lib/base/fs.h"
#include "lib/base/path.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerInitialize(int *argc, char ***argv) __attribute__((weak)); /* a target may have one */

enum { INPUT_BYTES_MAX = 16 << 20 };

static int is_input(const struct dirent *entry) {
        return entry->d_name[0] != '.';
}

static char *default_directory(const char *program) {
        const char *srcdir = getenv("srcdir"), *target = path_name(program);
        char *directory = NULL;

        if (strncmp(target, "fuzz_", 5) == 0)
                target += 5;
        if (asprintf(&directory, "%s/tests/fuzz/corpus/%s", srcdir ? srcdir : ".", target) < 0)
                return NULL;
        return directory;
}

/* Feeds one file. The copy is exactly as long as the input, so that a sanitizer sees a read past
 * its end. */
static int replay_file(int dir_fd, const char *name) {
        _cleanup_free_ char *text = NULL;
        _cleanup_free_ uint8_t *input = NULL;
        size_t n;
        int r = fs_read_file(dir_fd, name, INPUT_BYTES_MAX, &text, &n);

        if (r < 0)
                return r;
        input = malloc(n); /* may be NULL for n = 0: an input as good as any */
        if (n > 0) {
                if (!input)
                        return -ENOMEM;
                memcpy(input, text, n);
        }
        (void)LLVMFuzzerTestOneInput(input, n); /* libFuzzer asks for 0 and gives it no meaning */
        return 0;
}

static int replay_directory(const char *directory, unsigned *ret_n) {
        _cleanup_close_ int dir_fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        struct dirent **entries;
        unsigned n_inputs = 0;
        int n, r = 0;

        if (dir_fd < 0)
                return -errno;
        n = scandir(directory, &entries, is_input, alphasort);
        if (n < 0)
                return -errno;
        for (int i = 0; i < n; i++) {
                if (r == 0) {
                        printf("# %s\n", entries[i]->d_name);
                        (void)fflush(stdout); /* before the input that may be our last */
                        r = replay_file(dir_fd, entries[i]->d_name);
                        n_inputs += r == 0;
                }
                free(entries[i]);
        }
        free(entries);
        *ret_n = n_inputs;
        return r;
}

int main(int argc, char **argv) {
        _cleanup_free_ char *directory = NULL;
        const char *target = path_name(argv[0]);
        unsigned n = 0;
        int r;

        if (LLVMFuzzerInitialize)
                (void)LLVMFuzzerInitialize(&argc, &argv);
        directory = argc > 1 ? strdup(argv[1]) : default_directory(argv[0]);
        if (!directory)
                return EXIT_FAILURE;
        printf("1..1\n");
        r = replay_directory(directory, &n);
        if (r < 0)
                printf("not ok 1 - %s: after %u inputs '%s' cannot be read: %s\n", target, n,
                       directory, strerror(-r));
        else if (n == 0)
                printf("not ok 1 - %s: '%s' has no inputs\n", target, directory);
        else
                printf("ok 1 - %s: %u inputs replayed\n", target, n);
        return r == 0 && n > 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
