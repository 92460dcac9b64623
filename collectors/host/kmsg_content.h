/* What a line of the kernel log says. Pure. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#define KMSG_FIELDS_MAX 32
#define KMSG_KEY_SIZE 48
#define KMSG_VALUE_SIZE 256

typedef struct KmsgField {
        char key[KMSG_KEY_SIZE], value[KMSG_VALUE_SIZE]; /* printable ASCII, cut to fit */
} KmsgField;

/** What the runtime reports of the hardware: `NEURON_HW_ERR=<value> key=value …`. */
typedef struct KmsgHwError {
        char value[KMSG_VALUE_SIZE];
        KmsgField fields[KMSG_FIELDS_MAX]; /* in the order of the line, keys as spelled there */
        size_t n_fields;
        bool is_cut; /* the line has more */
} KmsgHwError;

/** @param text  may be NULL when n is 0 @return whether the line reports an error of the hardware
 */
bool kmsg_content_find_hw_error(const char *text, size_t n, KmsgHwError *ret);
/** @param key  case, and `-` or `_`, do not matter @return the value, borrowed from e; "": none */
const char *kmsg_content_hw_field(const KmsgHwError *e, const char *key);

/** @return whether the line is about Neuron */
bool kmsg_content_is_neuron(const char *text, size_t n);

/** What a crash report quotes. */
typedef enum KmsgFact {
        KMSG_FACT_SEGFAULT,
        KMSG_FACT_OOM,
        KMSG_FACT_MCE,
        KMSG_FACT_AER,
        KMSG_FACT_EFA,
        N_KMSG_FACTS
} KmsgFact;

/** As records name them. */
extern const char *const kmsg_content_fact_names[N_KMSG_FACTS];

/** @return N_KMSG_FACTS: the line has none */
KmsgFact kmsg_content_fact(const char *text, size_t n);
