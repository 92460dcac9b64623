/* The runtime's log. Beyond not crashing: what is found lies in the text, blocks and their items
 * make progress, and a block holds no opening delimiter. */
#include <stdlib.h>
#include <string.h>

#include "collectors/neuron/nrt_log.h"
#include "lib/base/cleanup.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void check(bool claim) {
        if (!claim)
                abort();
}

static void check_span(NrtSpan s, const char *text, size_t n) {
        check(s.n == 0 || (s.s >= text && s.s + s.n <= text + n));
}

static void check_lines(const char *text, size_t n) {
        for (const char *line = text, *end = text + n; line < end;) {
                const char *stop = memchr(line, '\n', (size_t)(end - line));
                size_t size = (size_t)((stop ? stop : end) - line);
                NrtLine l;
                if (nrt_log_parse_line(line, size, &l)) {
                        check_span(l.time, line, size);
                        check_span(l.level, line, size);
                        check_span(l.module, line, size);
                        check_span(l.function, line, size);
                        check_span(l.message, line, size);
                        check(l.level.n > 0 && l.time.n >= 20);
                        check(l.device >= -1 && l.core >= -1 && (l.core < 0 || l.device >= 0));
                        (void)nrt_log_is_error(&l); /* for its reads */
                }
                line += size + 1;
        }
}

static void check_block(const NrtSpan *block) {
        bool in_environment = false;
        NrtInfoItem item;

        for (size_t at = 0, before = 0; nrt_infodump_next(block, &at, &in_environment, &item);
             before = at) {
                check(at > before && at <= block->n);
                check_span(item.name, block->s, block->n);
                check_span(item.value, block->s, block->n);
                check(item.kind == NRT_INFO_OTHER || item.name.n > 0);
        }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
        char *text = malloc(MAX(n, (size_t)1)); /* of its own size: a sanitizer sees its end */
        NrtInfodump dump;

        check(text != NULL);
        if (n > 0)
                memcpy(text, data, n);
        check_lines(text, n);
        for (size_t at = 0, before = 0; nrt_infodump_find(text, n, &at, &dump); before = at) {
                check(at > before && at <= n);
                check_span(dump.lines, text, n);
                check_block(&dump.lines);
        }
        free(text);
        return 0;
}
