/* Records of the kernel's log, which who can open a device can have written. Beyond not crashing:
 * records make progress, the text never grows, and fields are printable and ended. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "collectors/host/kmsg_content.h"
#include "collectors/host/kmsg_record.h"
#include "lib/base/cleanup.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void check(bool claim) {
        if (!claim)
                abort();
}

static void check_word(const char *s, size_t size) {
        size_t n = strnlen(s, size);

        check(n < size);
        for (size_t i = 0; i < n; i++)
                check(s[i] > ' ' && s[i] < 0x7f);
}

static void check_record(const char *data, size_t n) {
        KmsgRecord r = { 0 };
        KmsgHwError e;

        if (kmsg_record_parse(data, n, &r) != 0)
                return;
        check(r.text.n + r.context.n <= n);
        check(r.priority < 8);
        (void)kmsg_content_is_neuron(r.text.text ? r.text.text : "", r.text.n); /* for its reads */
        if (kmsg_content_find_hw_error(r.text.text, r.text.n, &e)) {
                check(e.n_fields <= KMSG_FIELDS_MAX);
                check_word(e.value, sizeof e.value);
                for (size_t i = 0; i < e.n_fields; i++) {
                        check_word(e.fields[i].key, sizeof e.fields[i].key);
                        check_word(e.fields[i].value, sizeof e.fields[i].value);
                        check(kmsg_content_hw_field(&e, e.fields[i].key)[0] != '\0' ||
                              e.fields[i].value[0] == '\0' || i > 0);
                }
        }
        kmsg_record_done(&r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
        char *text = malloc(MAX(n, (size_t)1)); /* of its own size: a sanitizer sees its end */

        check(text != NULL);
        if (n > 0)
                memcpy(text, data, n);
        for (size_t at = 0; at < n;) {
                size_t size = kmsg_record_size(text + at, n - at);
                check(size > 0 && size <= n - at);
                check_record(text + at, size);
                at += size;
        }
        free(text);
        return 0;
}
