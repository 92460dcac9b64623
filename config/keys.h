/* The one table of the configuration: a row a key. Loader, --print-config, example file, man page
 * and docs/CONFIGURATION.md are made from it; nothing else knows a key's name, limits or default.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/strbuf.h"

/* The form that a string must have. */
typedef struct Form {
        /** @return whether text has the form; when not, *fault tells what is wrong about it */
        bool (*check)(const char *text, StrBuf *fault);
        const char *what;      /* what the string is, e.g. `an absolute path` */
        const char *remedy;    /* how it is written, for people */
        bool is_path;          /* absolute: kept without `//`, `/./` and a trailing slash */
        const char *variables; /* letters that may follow `%`; NULL = no template */
} Form;

#define FORM_SOURCE_VARIABLES "dcptli"
#define FORM_DESTINATION_VARIABLES "dcptliknhu"

/** The part of a path template that has no variable: up to the first component with one, `%%`
 * resolved, without trailing slash; `/` when nothing is left. @return the caller's, NULL for lack
 * of memory */
char *form_fixed_part(const char *path_template);

/** @param letters  of which any will do; NULL = any but `%%`  @return the first such variable of a
 * template, or NULL */
const char *form_find_variable(const char *path_template, const char *letters);

typedef enum KeyType {
        KEY_SECTION,  /* a mapping with a fixed set of keys, named `section.key` */
        KEY_ELEMENTS, /* a list of such mappings; their keys are named `list[].key` */
        KEY_STRING,   /* char *; one of `words` where there are any */
        KEY_STRINGS,  /* StringList */
        KEY_MAP,      /* StringMap */
        KEY_CHOICE,   /* one of `words`, kept as a bool or an int */
        KEY_BOOL,
        KEY_NUMBER, /* uint64_t; `words` are further spellings, e.g. auto */
        KEY_BYTES,  /* uint64_t */
        KEY_RATE,   /* uint64_t, bytes per second */
        KEY_TIME,   /* uint64_t, microseconds */
        KEY_SHARE,  /* ConfigSize: a size or a share of the file system */
        KEY_MINUTE, /* unsigned, minute of the day, written HH:MM */
        N_KEY_TYPES
} KeyType;

typedef struct KeyWord {
        const char *word; /* NULL ends the list */
        int value;
} KeyWord;

enum {
        KEY_RESTART = 1 << 0, /* a change takes effect at the next start only */
        KEY_OFF = 1 << 1,     /* 0 and off are taken, and mean no limit */
        KEY_S3 = 1 << 2,      /* for destinations of type s3 only */
        KEY_VOLUME = 1 << 3,  /* for destinations of type volume only */
        KEY_IDENTITY = 1 << 4 /* names its element: unique in its list */
};

typedef struct ConfigKey {
        const char *name; /* dotted, e.g. `destinations[].part_size` */
        KeyType type;
        unsigned flags;
        size_t offset, size; /* in Config, or in the element's struct below a `[]` */
        uint64_t min,
                max; /* of the value; for strings, lists and maps: length, 0 = the general bound */
        const char *why_min; /* reason for min, for people; may be NULL */
        const KeyWord *words;
        const Form *form;      /* of a string, or of each one in a list or mapping; may be NULL */
        const Form *name_form; /* of the names in a mapping; may be NULL */
        const char *
                fallback; /* the default as text, lists separated by blanks; NULL = must be given */
        const char *help; /* one sentence */
        const char *source;  /* where a fact from outside comes from; may be NULL */
        const char *example; /* value in the example file; NULL = the default */
        const char
                *below; /* KEY_SECTION, KEY_ELEMENTS: the prefix of what lies below, `sources[].` */
        size_t element_size, count_offset, line_offset; /* KEY_ELEMENTS; line_offset 0 = none */
} ConfigKey;

enum {
        KEYS_MAX = 128,           /* rows, at most */
        KEYS_STRING_MAX = 4000,   /* bytes of one string */
        KEYS_LIST_MAX = 1000,     /* entries of one list or mapping */
        KEYS_MAP_NAME_MAX = 128,  /* bytes of a name in a free mapping */
        KEYS_MAP_ENTRIES_MAX = 64 /* entries of a free mapping */
};

/** @return the rows, in the order of the documentation; static */
const ConfigKey *keys_all(size_t *ret_n);

/** @return the row of this dotted name, or NULL */
const ConfigKey *keys_get(const char *name);

/* A name that is no key and is refused with a message of its own. */
typedef struct ConfigRefusedKey {
        const char *name, *fault, *remedy;
} ConfigRefusedKey;

/** @return the message for `leaf` right below `prefix`, or NULL when the name is simply unknown */
const ConfigRefusedKey *keys_find_refused(const char *prefix, const char *leaf);

/** @return whether the row lies right below `prefix` */
bool keys_is_child(const ConfigKey *key, const char *prefix);

/** @param after  NULL = from the beginning @return the next row right below `prefix`, or NULL */
const ConfigKey *keys_next_child(const ConfigKey *after, const char *prefix);

/** @return the row's name without its prefix (borrowed) */
const char *keys_leaf(const ConfigKey *key);

/** @return what the type is called, e.g. `a size`; static */
const char *keys_type_name(const ConfigKey *key);

/** @return how a value of the type is written, as a remedy; static */
const char *keys_type_remedy(const ConfigKey *key);
