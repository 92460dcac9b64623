/* Writes what people read about the configuration, from the one table: the example file, the man
 * page, the document. */
#include <stdio.h>
#include <string.h>

#include "config/config.h"
#include "config/keys.h"
#include "config/value.h"
#include "lib/base/strbuf.h"

enum { WRAP_COLUMNS = 96, MAN_COLUMNS = 78 };

static bool is_quantity(const ConfigKey *key) {
        return key->type == KEY_NUMBER || key->type == KEY_BYTES || key->type == KEY_RATE ||
               key->type == KEY_TIME;
}

/* What can stand there, e.g. `a size, 5MiB to 5GiB`. */
static void add_kind(StrBuf *b, const ConfigKey *key) {
        bool is_words_only = key->words && key->type != KEY_NUMBER;
        char min[VALUE_QUANTITY_SIZE], max[VALUE_QUANTITY_SIZE];

        if (key->form && key->type == KEY_STRING)
                strbuf_add(b, key->form->what);
        else if (key->type == KEY_ELEMENTS)
                strbuf_add(b, "a list of mappings");
        else if (!is_words_only)
                strbuf_add(b, keys_type_name(key));
        if (is_quantity(key) && key->min == key->max)
                strbuf_addf(b, ", always %s", value_format_quantity(key, key->min, min));
        else if (is_quantity(key) && key->max < UINT64_MAX)
                strbuf_addf(b, ", %s to %s", value_format_quantity(key, key->min, min),
                            value_format_quantity(key, key->max, max));
        if (key->flags & KEY_OFF)
                strbuf_add(b, ", or 0 for no limit");
        for (const KeyWord *w = key->words; w && w->word; w++) {
                const char *join = w == key->words ? (is_words_only ? "" : ", or ")
                                   : w[1].word     ? ", "
                                                   : " or ";
                strbuf_addf(b, "%s%s", join, w->word);
        }
}

/* How the default is written; NULL when the key must be given. */
static const char *default_of(const ConfigKey *key, char **ret_owned) {
        StrBuf b = STRBUF_INIT;
        Config *c = NULL;

        *ret_owned = NULL;
        if (key->type == KEY_ELEMENTS)
                return key->min > 0 ? NULL : "[]";
        if (!key->fallback)
                return NULL;
        if (strcmp(key->name, "sources[].destinations") == 0)
                return "all";
        if (key->type == KEY_MAP)
                return "{}";
        if (key->type != KEY_STRINGS)
                return key->fallback[0] ? key->fallback : "\"\"";
        if (!key->fallback[0])
                return "[]";
        if (config_builtin(&c) == 0)
                value_add_yaml(key, c, &b);
        config_free(c);
        *ret_owned = strbuf_take(&b);
        return *ret_owned;
}

/* What else is to be known of a key, in sentences that begin with a blank. */
static void add_notes(StrBuf *b, const ConfigKey *key) {
        if (key->flags & KEY_S3)
                strbuf_add(b, " For type: s3 only.");
        if (key->flags & KEY_VOLUME)
                strbuf_add(b, " For type: volume only.");
        if (key->flags & KEY_RESTART)
                strbuf_add(b, " A change needs a restart.");
        if (key->later)
                strbuf_add(b, " Only the default is available in this version.");
}

static const ConfigKey *next_child(const ConfigKey *after, const char *prefix) {
        size_t n;
        const ConfigKey *keys = keys_all(&n);

        for (const ConfigKey *key = after ? after + 1 : keys; key < keys + n; key++)
                if (keys_is_child(key, prefix))
                        return key;
        return NULL;
}

/* The example of a list of mappings is made of its keys' examples. */
static void add_example(StrBuf *b, const ConfigKey *key) {
        char prefix[KEYS_PREFIX_SIZE];
        const char *join = "[{";

        if (key->type != KEY_ELEMENTS) {
                strbuf_add(b, key->example ? key->example : "");
                return;
        }
        for (const ConfigKey *k = next_child(NULL, keys_prefix(key, prefix)); k;
             k = next_child(k, prefix)) {
                strbuf_addf(b, "%s%s: %s", join, keys_leaf(k),
                            k->example ? k->example : k->fallback);
                join = ", ";
        }
        strbuf_add(b, "}]");
}

/* The example file */

static void print_comment(const char *indentation, const char *text) {
        size_t width = WRAP_COLUMNS - strlen(indentation) - 2;

        while (*text) {
                size_t n = strlen(text);
                if (n > width)
                        for (n = width; n > 0 && text[n] != ' ';)
                                n--;
                printf("%s# %.*s\n", indentation, (int)n, text);
                text += n + (text[n] == ' ');
        }
}

static void print_example_keys(const char *prefix, const char *indentation);
static void print_example_bucket(void);

static void print_example_key(const ConfigKey *key, const char *indentation, bool is_first) {
        _cleanup_(strbuf_done) StrBuf text = STRBUF_INIT, deeper = STRBUF_INIT;
        _cleanup_free_ char *owned = NULL;
        const char *value = default_of(key, &owned);
        bool is_list = key->type == KEY_ELEMENTS && !value;
        char prefix[KEYS_PREFIX_SIZE];

        strbuf_add(&text, key->help);
        add_notes(&text, key);
        print_comment(indentation, text.text);
        if (value && (key->example || key->type == KEY_ELEMENTS)) {
                strbuf_clear(&text);
                add_example(&text, key);
                printf("%s# Example: %s\n", indentation, text.text);
        }
        if (is_first) /* the dash of an element takes the place of two blanks */
                printf("%.*s- ", (int)strlen(indentation) - 2, indentation);
        else
                printf("%s%s", indentation, value ? "#" : "");
        printf("%s:", keys_leaf(key));
        if (!is_list && key->type != KEY_SECTION)
                printf(" %s", value && strcmp(value, "all") == 0 ? "[fsx]"
                              : value                            ? value
                                                                 : key->example);
        printf("\n");
        strbuf_addf(&deeper, "%s%s", indentation, is_list ? "    " : "  ");
        if (is_list || key->type == KEY_SECTION)
                print_example_keys(keys_prefix(key, prefix), deeper.text);
}

static void print_example_keys(const char *prefix, const char *indentation) {
        bool is_first = strstr(prefix, "[]");

        for (const ConfigKey *key = next_child(NULL, prefix); key; key = next_child(key, prefix)) {
                if (key->flags & KEY_S3)
                        continue;
                if (!prefix[0])
                        printf("\n");
                print_example_key(key, indentation, is_first);
                is_first = false;
        }
        if (strcmp(prefix, "destinations[].") == 0)
                print_example_bucket();
}

/* A second destination, as a comment: a destination is of one type, and the file shows the defaults
 * of what it has. */
static void print_example_bucket(void) {
        static const char prefix[] = "destinations[].", indentation[] = "  #   ";
        const char *start = "  # - ";

        printf("  # Or, or also, a bucket; take away `# ` before each line:\n");
        for (const ConfigKey *key = next_child(NULL, prefix); key; key = next_child(key, prefix)) {
                _cleanup_free_ char *owned = NULL;
                const char *value = default_of(key, &owned);

                if (key->flags & KEY_VOLUME)
                        continue;
                if (key->flags & KEY_S3)
                        print_comment(indentation, key->help);
                if (value && key->example)
                        printf("%s# Example: %s\n", indentation, key->example);
                printf("%s%s: %s\n", start, keys_leaf(key),
                       strcmp(keys_leaf(key), "name") == 0   ? "archive"
                       : strcmp(keys_leaf(key), "type") == 0 ? "s3"
                       : value                               ? value
                                                             : key->example);
                start = indentation;
        }
}

static void print_example(void) {
        printf("# Configuration of neuron-collectd: an example with every key. What is commented "
               "out as `#key: value`\n"
               "# is the default; see neuron-collectd.yaml(5) for the forms of values.\n"
               "# Check a change with `neuron-collectd --config FILE --check`.\n"
               "# Made by config/generate from the table in config/keys.c: change that, not this "
               "file.\n");
        print_example_keys("", "");
}

/* The man page */

/* mdoc wants a new sentence on a new line, and no line longer than 80 bytes. */
static void print_roff(const char *text) {
        while (*text) {
                const char *sentence = strstr(text, ". ");
                size_t n = sentence ? (size_t)(sentence + 1 - text) : strlen(text);
                if (n > MAN_COLUMNS)
                        for (n = MAN_COLUMNS; n > 0 && text[n] != ' ';)
                                n--;
                printf("%s%.*s\n", *text == '.' || *text == '\'' ? "\\&" : "", (int)n, text);
                text += n + (text[n] == ' ');
        }
}

static void print_man_keys(const char *prefix) {
        char below[KEYS_PREFIX_SIZE];

        for (const ConfigKey *key = next_child(NULL, prefix); key; key = next_child(key, prefix)) {
                _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
                _cleanup_free_ char *owned = NULL;
                const char *value = default_of(key, &owned);

                strbuf_add(&b, key->help);
                add_notes(&b, key);
                printf(".It Cm %s\n", key->name);
                print_roff(b.text);
                if (key->type != KEY_SECTION) {
                        strbuf_clear(&b);
                        strbuf_add(&b, "Takes ");
                        add_kind(&b, key);
                        strbuf_addf(&b, value ? "; the default is %s." : "; must be given.", value);
                        print_roff(b.text);
                }
                if (key->source)
                        printf(".Pq Source: %s\n", key->source);
                if (key->type == KEY_SECTION || key->type == KEY_ELEMENTS)
                        print_man_keys(keys_prefix(key, below));
        }
}

static const char man_start[] =
        ".\\\" Made by config/generate from the table in config/keys.c: change that, not this "
        "file.\n"
        ".Dd November 21, 2026\n"
        ".Dt NEURON-COLLECTD.YAML 5\n"
        ".Os\n"
        ".Sh NAME\n"
        ".Nm neuron-collectd.yaml\n"
        ".Nd configuration of neuron-collectd\n"
        ".Sh DESCRIPTION\n"
        "The file is one YAML 1.1 document in UTF-8, at most 1 MiB large.\n"
        "Anchors with aliases, tags and further documents are not supported.\n"
        "Every fault in it is told in one run, as\n"
        ".Dl FILE:LINE: key: fault; remedy\n"
        "Unknown keys and keys that are given twice are faults.\n"
        ".Pp\n"
        "Sizes are written\n"
        ".Cm 64KiB , 8MiB\n"
        "or\n"
        ".Cm 1GiB ,\n"
        "or with\n"
        ".Cm K , M , G\n"
        "and\n"
        ".Cm T ,\n"
        "which are binary too; rates as a size per second, such as\n"
        ".Cm 50MiB/s ;\n"
        "times\n"
        ".Cm 250ms , 5s , 10m , 2h\n"
        "or\n"
        ".Cm 7d .\n"
        "Where there can be no limit at all,\n"
        ".Cm 0\n"
        "and\n"
        ".Cm off\n"
        "say so.\n"
        ".Pp\n"
        "In values,\n"
        ".Cm ${NAME}\n"
        "is replaced by the environment variable of that name;\n"
        "one that is not defined is a fault.\n"
        "A plain\n"
        ".Cm ${\n"
        "is written\n"
        ".Cm $${ .\n"
        "What is put in is not looked at again.\n"
        ".Pp\n"
        "Paths may have format variables:\n"
        ".Cm %d\n"
        "(date and time),\n"
        ".Cm %c\n"
        "(cluster id),\n"
        ".Cm %p\n"
        "(process),\n"
        ".Cm %t\n"
        "(thread),\n"
        ".Cm %l\n"
        "(log id) and\n"
        ".Cm %i\n"
        "(instance id); at destinations also\n"
        ".Cm %k\n"
        "(kind),\n"
        ".Cm %n\n"
        "(source name),\n"
        ".Cm %h\n"
        "(host) and\n"
        ".Cm %u\n"
        "(owner's user name).\n"
        ".Cm %%\n"
        "is a percent sign.\n"
        "A destination's path or prefix with neither\n"
        ".Cm %d\n"
        "nor\n"
        ".Cm %c\n"
        "gets\n"
        ".Cm /%d-%c\n"
        "appended when a source of kind neuron-core-dump goes there.\n"
        ".Sh KEYS\n"
        ".Bl -tag -width Ds\n";

static const char man_end[] =
        ".El\n"
        ".Sh ENVIRONMENT\n"
        "Destinations of type s3 heed the variables of the AWS SDKs,\n"
        "which the unit reads from\n"
        ".Pa /etc/default/neuron-collectd\n"
        "or\n"
        ".Pa /etc/sysconfig/neuron-collectd .\n"
        "Credentials are taken from the first of these that has any,\n"
        "and read anew before they expire:\n"
        ".Bl -tag -width Ds\n"
        ".It Ev AWS_ACCESS_KEY_ID , AWS_SECRET_ACCESS_KEY , AWS_SESSION_TOKEN\n"
        "Keys, unless the destination names a\n"
        ".Cm profile .\n"
        ".It Ev AWS_WEB_IDENTITY_TOKEN_FILE , AWS_ROLE_ARN\n"
        "A role by web identity, as EKS gives it to pods (IRSA).\n"
        ".It Ev AWS_SHARED_CREDENTIALS_FILE , AWS_CONFIG_FILE , AWS_PROFILE\n"
        "The shared files, by default\n"
        ".Pa ~/.aws/credentials\n"
        "and\n"
        ".Pa ~/.aws/config\n"
        "of the user that the agent runs as, and the profile in them.\n"
        ".It Ev AWS_CONTAINER_CREDENTIALS_RELATIVE_URI , AWS_CONTAINER_CREDENTIALS_FULL_URI , "
        "AWS_CONTAINER_AUTHORIZATION_TOKEN , AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE\n"
        "The endpoint of ECS and of EKS Pod Identity.\n"
        ".It Ev AWS_EC2_METADATA_DISABLED , AWS_EC2_METADATA_SERVICE_ENDPOINT , "
        "AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE\n"
        "The role of the EC2 instance, by IMDSv2.\n"
        ".El\n"
        ".Pp\n"
        "Where S3 is, unless\n"
        ".Cm destinations[].endpoint\n"
        "says so:\n"
        ".Bl -tag -width Ds\n"
        ".It Ev AWS_ENDPOINT_URL_S3 , AWS_ENDPOINT_URL , AWS_IGNORE_CONFIGURED_ENDPOINT_URLS\n"
        "The address of the store.\n"
        ".It Ev AWS_CA_BUNDLE\n"
        "A PEM file instead of the system's certificates, for a destination without\n"
        ".Cm ca_file .\n"
        ".It Ev AWS_USE_DUALSTACK_ENDPOINT , AWS_USE_FIPS_ENDPOINT\n"
        "Which of AWS's host names are used.\n"
        ".It Ev HTTPS_PROXY , https_proxy , http_proxy , ALL_PROXY , NO_PROXY\n"
        "The proxy, unless\n"
        ".Cm destinations[].proxy\n"
        "names one.\n"
        ".El\n"
        ".Sh FILES\n"
        ".Bl -tag -width Ds\n"
        ".It Pa /etc/neuron-collectd/neuron-collectd.yaml\n"
        "The configuration.\n"
        "Without it the agent watches the runtime's default dump directory\n"
        "and delivers to\n"
        ".Pa /var/lib/neuron-collectd/delivered .\n"
        ".El\n"
        ".Sh EXAMPLES\n"
        "Core dumps of the Neuron runtime go to a shared volume:\n"
        ".Bd -literal -offset indent\n"
        "sources:\n"
        "  - name: core-dumps\n"
        "    kind: neuron-core-dump\n"
        "    path: /tmp/neuron-core-dump/dt-%d-cid-%c\n"
        "destinations:\n"
        "  - name: fsx\n"
        "    type: volume\n"
        "    path: /fsx/neuron/%d-%c\n"
        ".Ed\n"
        ".Pp\n"
        "The same to a bucket, with the credentials that the node has:\n"
        ".Bd -literal -offset indent\n"
        "destinations:\n"
        "  - name: archive\n"
        "    type: s3\n"
        "    bucket: my-bucket\n"
        "    prefix: neuron/%d-%c\n"
        "    region: eu-west-1\n"
        ".Ed\n"
        ".Pp\n"
        "Show what is in force, and where each value comes from:\n"
        ".Dl neuron-collectd --config FILE --print-config\n";

static void print_man(void) {
        printf("%s", man_start);
        print_man_keys("");
        printf("%s", man_end);
}

/* The document */

static void add_markdown_default(StrBuf *b, const ConfigKey *key) {
        _cleanup_free_ char *owned = NULL;
        const char *value = default_of(key, &owned);

        if (value)
                strbuf_addf(b, "`%s`", value);
        else if (key->type != KEY_SECTION)
                strbuf_add(b, "must be given");
}

static void print_markdown_keys(const char *prefix) {
        char below[KEYS_PREFIX_SIZE];

        for (const ConfigKey *key = next_child(NULL, prefix); key; key = next_child(key, prefix)) {
                _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;

                strbuf_addf(&b, "`%s` | ", key->name);
                add_kind(&b, key);
                strbuf_add(&b, " | ");
                add_markdown_default(&b, key);
                strbuf_addf(&b, " | %s", key->help);
                add_notes(&b, key);
                if (key->source)
                        strbuf_addf(&b, " (%s)", key->source);
                printf("| %s |\n", b.text);
                if (key->type == KEY_SECTION || key->type == KEY_ELEMENTS)
                        print_markdown_keys(keys_prefix(key, below));
        }
}

static void print_markdown(void) {
        printf("# Configuration\n\n"
               "Made by `config/generate` from the table in `config/keys.c`: change that, not this "
               "file.\n\n"
               "One YAML 1.1 document in UTF-8, at most 1 MiB, "
               "`/etc/neuron-collectd/neuron-collectd.yaml` by default. "
               "`neuron-collectd --check` tells every fault in one run, "
               "`neuron-collectd --print-config` shows what is in force and where each value comes "
               "from.\n\n"
               "- Sizes: `64KiB 8MiB 1GiB` (`K M G T` are binary too). Times: `250ms 5s 10m 2h "
               "7d`. Rates: `50MiB/s`. "
               "`0` and `off` mean no limit where the table says so.\n"
               "- `${NAME}` in values is replaced by the environment variable; an undefined one is "
               "a fault. "
               "`$${` is a plain `${`.\n"
               "- Aliases, tags, doubled and unknown keys and further documents are faults. "
               "A section may be empty.\n"
               "- A destination's `path` or `prefix` with neither `%%d` nor `%%c` gets `/%%d-%%c` "
               "appended when a source of kind "
               "`neuron-core-dump` goes there; `--print-config` says so.\n"
               "- For `type: s3`, credentials, endpoints and proxies are taken from the "
               "environment variables and files that "
               "the AWS SDKs know; neuron-collectd.yaml(5) lists them.\n\n"
               "| key | takes | default | meaning |\n|---|---|---|---|\n");
        print_markdown_keys("");
}

int main(int argc, char **argv) {
        static const struct {
                const char *name;
                void (*print)(void);
        } outputs[] = { { "example", print_example },
                        { "man", print_man },
                        { "markdown", print_markdown } };

        for (size_t i = 0; argc == 2 && i < ELEMENTSOF(outputs); i++)
                if (strcmp(argv[1], outputs[i].name) == 0) {
                        outputs[i].print();
                        return fflush(stdout) == EOF ? EXIT_FAILURE : EXIT_SUCCESS;
                }
        fprintf(stderr, "usage: %s example|man|markdown\n", argv[0]);
        return EXIT_FAILURE;
}
