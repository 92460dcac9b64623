/* Fuzz target: any bytes as configuration. What is taken must be printed so that it is read back
 * the same. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "config/config.h"
#include "config/load.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void on_difference(const char *key, bool needs_restart, void *userdata) {
        (void)needs_restart;
        (void)userdata;
        fprintf(stderr, "%s differs after printing and reading again\n", key);
        abort();
}

static void check_round_trip(const Config *c) {
        Diags diags = { 0 };
        Config *again = NULL;
        char *text = NULL;
        size_t n;
        FILE *f = open_memstream(&text, &n);

        if (!f || config_print(c, f) != 0 || fclose(f) != 0)
                abort();
        if (n <= LOAD_FILE_MAX) { /* defaults and origins may make a very large file larger than can
                                     be read */
                if (config_parse(&again, "printed.yaml", text, n, NULL, &diags) != 0) {
                        diag_print(&diags, stderr);
                        abort();
                }
                config_compare(c, again, on_difference, NULL);
                config_compare(again, c, on_difference, NULL);
        }
        config_free(again);
        diag_done(&diags);
        free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
        static char *const environment[] = {
                "A=value", "EMPTY=", "NESTED=${A}", "NASTY=a: \"b\" # \n\t${", "LATIN=\xe4", NULL
        };
        Diags diags = { 0 };
        Config *c = NULL;
        int r = config_parse(&c, "fuzz.yaml", data, n, environment, &diags);

        if ((r == 0) != (c != NULL) ||
            (r == 0) != (diags.n == 0)) /* taken without a fault, or refused with one */
                abort();
        for (size_t i = 0; i < diags.n; i++) {
                char *line = diag_format(&diags.items[i]);
                if (!line || strchr(line, '\n'))
                        abort();
                free(line);
        }
        if (c)
                check_round_trip(c);
        config_free(c);
        diag_done(&diags);
        return 0;
}
