/* What a line of the kernel log says: that it is about Neuron, that the hardware has an error, or a
 * fact that crash reports quote.
 *
 * Lines are recognized by their words alone. A user who can open a device can make the driver print
 * what he likes, and the name of a process is its user's choice: a line is a hint. Which lines are
 * recorded is decided in kmsg_filter.c. */
#include "collectors/host/kmsg_content.h"

#include <ctype.h>
#include <string.h>
#include <strings.h>

#include "lib/base/cleanup.h"

static size_t copy_printable(char *to, size_t size, const char *s, size_t n) {
        size_t k = 0;

        for (size_t i = 0; i < n && k + 1 < size; i++)
                to[k++] = s[i] > ' ' && s[i] < 0x7f ? s[i] : '?';
        to[k] = '\0';
        return k;
}

static bool is_blank(char c) {
        return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\0';
}

static size_t word_size(const char *s, const char *end) {
        size_t n = 0;

        while (s + n < end && !is_blank(s[n]))
                n++;
        return n;
}

bool kmsg_content_find_hw_error(const char *text, size_t n, KmsgHwError *ret) {
        static const char mark[] = "NEURON_HW_ERR=";
        const char *end = text + n, *at = text ? memmem(text, n, mark, sizeof mark - 1) : NULL;

        if (!at)
                return false;
        memset(ret, 0, sizeof *ret);
        at += sizeof mark - 1;
        size_t size = word_size(at, end);
        (void)copy_printable(ret->value, sizeof ret->value, at, size);
        for (at += size; at < end; at += size) {
                while (at < end && is_blank(*at))
                        at++;
                size = word_size(at, end);
                const char *equals = size > 0 ? memchr(at, '=', size) : NULL;
                if (!equals || equals == at)
                        continue;
                if (ret->n_fields == KMSG_FIELDS_MAX) {
                        ret->is_cut = true;
                        break;
                }
                KmsgField *f = &ret->fields[ret->n_fields++];
                (void)copy_printable(f->key, sizeof f->key, at, (size_t)(equals - at));
                (void)copy_printable(f->value, sizeof f->value, equals + 1,
                                     (size_t)(at + size - equals - 1));
        }
        return true;
}

static bool keys_are_equal(const char *a, const char *b) {
        for (; *a != '\0' && *b != '\0'; a++, b++) {
                char x = (char)tolower((unsigned char)*a), y = (char)tolower((unsigned char)*b);
                if ((x == '-' ? '_' : x) != (y == '-' ? '_' : y))
                        return false;
        }
        return *a == *b;
}

const char *kmsg_content_hw_field(const KmsgHwError *e, const char *key) {
        for (size_t i = 0; i < e->n_fields; i++)
                if (keys_are_equal(e->fields[i].key, key))
                        return e->fields[i].value;
        return "";
}

/* @return whether a line begins with `nd0:`, `nd 12`, `[ND 0][NC 1]` … */
static bool names_device(const char *s, const char *end) {
        if (s < end && *s == '[')
                s++;
        if (end - s < 3 || strncasecmp(s, "nd", 2) != 0)
                return false;
        s += 2;
        if (*s == ' ')
                s++;
        const char *digits = s;
        while (s < end && isdigit((unsigned char)*s))
                s++;
        return s > digits && (s == end || strchr(" :]", *s));
}

bool kmsg_content_is_neuron(const char *text, size_t n) {
        const char *end = text + n;

        for (const char *at = text; (size_t)(end - at) >= 6 && n >= 6; at++)
                if (strncasecmp(at, "neuron", 6) == 0)
                        return true;
        return n > 0 && names_device(text, end);
}

const char *const kmsg_content_fact_names[N_KMSG_FACTS] = { "segfault", "oom", "mce", "aer",
                                                            "efa" };

/* `COMMAND[PID` or `pcieport 0000:00:1c.0: ` may precede the words. After 24 bytes, a line of a
 * file system may have what a user wrote into an option of a mount. */
#define START_BYTES_MAX 23

KmsgFact kmsg_content_fact(const char *text, size_t n) {
        static const struct {
                KmsgFact kind;
                const char *text;
                size_t start_max;
        } rows[] = {
                { KMSG_FACT_SEGFAULT, "]: segfault at ", START_BYTES_MAX },
                { KMSG_FACT_SEGFAULT, "traps: ", 0 },
                { KMSG_FACT_SEGFAULT, "]: unhandled exception: ", START_BYTES_MAX },
                { KMSG_FACT_OOM, "Out of memory: Killed process ", 0 },
                { KMSG_FACT_OOM, "Memory cgroup out of memory: Killed process ", 0 },
                { KMSG_FACT_OOM, "oom-kill:", 0 },
                { KMSG_FACT_OOM, " invoked oom-killer: ", START_BYTES_MAX },
                { KMSG_FACT_MCE, "mce: ", 0 },
                { KMSG_FACT_MCE, "[Hardware Error]: ", START_BYTES_MAX },
                { KMSG_FACT_MCE, "Memory failure: ", 0 },
                { KMSG_FACT_AER, "AER: ", START_BYTES_MAX },
                { KMSG_FACT_AER, "PCIe Bus Error: ", START_BYTES_MAX },
                { KMSG_FACT_EFA, "efa ", 0 },
                { KMSG_FACT_EFA, "infiniband efa_", 0 },
        };
        for (size_t i = 0; i < ELEMENTSOF(rows); i++) {
                const char *found = memmem(text, n, rows[i].text, strlen(rows[i].text));
                if (found && (size_t)(found - text) <= rows[i].start_max)
                        return rows[i].kind;
        }
        return N_KMSG_FACTS;
}
