/* The table of the keys, after the forms that their strings must have: each form is a predicate
 * that says what is wrong, and one remedy. */
#include "config/keys.h"

#include <arpa/inet.h>
#include <assert.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/un.h>

#include "config/config.h"
#include "lib/base/cleanup.h"
#include "lib/base/log.h"
#include "lib/base/parse.h"
#include "lib/base/path.h"
#include "lib/base/strbuf.h"
#include "lib/http/url.h"

enum { NAME_MAX_BYTES = 64 };

/* ASCII only, whatever the locale. */
static bool is_letter_or_digit(char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

static bool consists_of(const char *text, const char *more) {
        for (; *text; text++)
                if (!is_letter_or_digit(*text) && !strchr(more, *text))
                        return false;
        return true;
}

static bool has_control(const char *text) {
        for (; *text; text++)
                if ((unsigned char)*text < 0x20 || *text == 0x7f)
                        return true;
        return false;
}

static bool refuse(StrBuf *fault, const char *what) {
        strbuf_add(fault, what);
        return false;
}

static bool check_name(const char *text, StrBuf *fault) {
        size_t n = strlen(text);

        if (n > NAME_MAX_BYTES)
                return refuse(fault, "is longer than 64 characters");
        if (n == 0 || !consists_of(text, "._-") || strcmp(text, ".") == 0 ||
            strcmp(text, "..") == 0)
                return refuse(fault, "is not a name of letters, digits, '.', '_' and '-'");
        return true;
}

static bool check_path(const char *text, StrBuf *fault) {
        if (text[0] != '/')
                return refuse(fault, "is not an absolute path");
        if (path_has_parent(text))
                return refuse(fault, "has a component '..'");
        if (has_control(text))
                return refuse(fault, "has a control character in it");
        return true;
}

static bool check_socket(const char *text, StrBuf *fault) {
        const size_t max = sizeof(((struct sockaddr_un *)0)->sun_path) - 1;

        if (!check_path(text, fault))
                return false;
        if (strlen(text) > max) {
                strbuf_addf(fault,
                            "is longer than the %zu bytes that a unix socket's path may have", max);
                return false;
        }
        return true;
}

static bool check_variables(const char *text, const char *letters, StrBuf *fault) {
        for (const char *p = strchr(text, '%'); p; p = strchr(p + 2, '%')) {
                if (p[1] == '\0')
                        return refuse(fault, "ends in a lone '%'");
                if (p[1] == '%' || strchr(letters, p[1]))
                        continue;
                if (is_letter_or_digit(p[1]))
                        strbuf_addf(fault, "has '%%%c', which is not a format variable here", p[1]);
                else
                        strbuf_add(fault, "has a '%' without the letter of a format variable");
                return false;
        }
        return true;
}

/* A shell's patterns, which are no directory that anybody means. */
static bool check_no_glob(const char *text, StrBuf *fault) {
        const char *bracket = strchr(text, '['), *brace = strchr(text, '{');

        if (!strpbrk(text, "*?") && !(bracket && strchr(bracket, ']')) &&
            !(brace && strchr(brace, ',') && strchr(brace, '}')))
                return true;
        return refuse(fault, "has a pattern of a shell (*, ?, [] or {}), which is not expanded");
}

static bool check_source_path(const char *text, StrBuf *fault) {
        return check_path(text, fault) && check_no_glob(text, fault) &&
               check_variables(text, FORM_SOURCE_VARIABLES, fault);
}

static bool check_volume_path(const char *text, StrBuf *fault) {
        return check_path(text, fault) && check_no_glob(text, fault) &&
               check_variables(text, FORM_DESTINATION_VARIABLES, fault);
}

static bool check_prefix(const char *text, StrBuf *fault) {
        const char *p = text;

        if (*text == '/')
                return refuse(fault, "begins with a slash, which would be part of every key");
        if (has_control(text))
                return refuse(fault, "has a control character in it");
        while (*p) {
                size_t n = strcspn(p, "/");
                if (n == 0 || (n == 1 && p[0] == '.') || (n == 2 && p[0] == '.' && p[1] == '.'))
                        return refuse(fault, "has an empty component, '.' or '..'");
                p += n;
                if (*p == '/' && *++p == '\0')
                        return refuse(fault, "ends in a slash");
        }
        return check_variables(text, FORM_DESTINATION_VARIABLES, fault);
}

static const char *skip_prefix(const char *text, const char *start) {
        size_t n = strlen(start);
        return strncmp(text, start, n) == 0 ? text + n : NULL;
}

/* What agent/api/listen.c binds: names would be looked up on the loop. */
static bool is_bindable(const char *host) {
        struct in6_addr address;

        return strcmp(host, "localhost") == 0 || inet_pton(AF_INET, host, &address) == 1 ||
               inet_pton(AF_INET6, host, &address) == 1;
}

static bool check_listen(const char *text, StrBuf *fault) {
        _cleanup_free_ char *address = strbuf_format("tcp://%s", text), *host = NULL;
        _cleanup_(url_done) Url u = { 0 };

        if (!address || url_parse(&u, address) < 0 || u.port == 0 || !u.is_origin)
                return refuse(fault, "is not host:port");
        const bool has_brackets = text[0] == '[';
        const size_t n = (size_t)(strrchr(text, ':') - text);
        host = strndup(text + has_brackets, n - 2 * has_brackets);
        return (host && is_bindable(host)) ||
               refuse(fault, "names a host that is neither an IP address nor localhost");
}

static bool check_bus(const char *text, StrBuf *fault) {
        const char *path = skip_prefix(text, "ipc://");
        _cleanup_(url_done) Url u = { 0 };

        if (path ? check_socket(path, &(StrBuf){ .failed = true })
                 : url_parse(&u, text) == 0 && strcmp(u.scheme, "tcp") == 0 && u.port > 0 &&
                            u.is_origin)
                return true;
        return refuse(fault, "is not an address that agents can use");
}

static bool check_endpoint(const char *text, StrBuf *fault) {
        _cleanup_(url_done) Url u = { 0 };

        return (url_parse(&u, text) == 0 && url_is_http(&u) && u.is_origin) ||
               refuse(fault, "is not http(s)://host[:port]");
}

static bool check_proxy(const char *text, StrBuf *fault) {
        _cleanup_(url_done) Url u = { 0 };

        if (url_parse(&u, text) == 0 && u.is_origin &&
            (url_is_http(&u) || strcmp(u.scheme, "socks5") == 0 ||
             strcmp(u.scheme, "socks5h") == 0))
                return true;
        return refuse(fault, "is not the address of a proxy");
}

static bool is_bucket(const char *text, size_t n) {
        if (n < 3 || n > 63)
                return false;
        for (size_t i = 0; i < n; i++) {
                bool inner = i > 0 && i + 1 < n;
                char c = text[i];
                if (!((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ||
                      (inner && (c == '-' || c == '.'))))
                        return false;
        }
        return true;
}

/* @see S3 User Guide: naming rules of directory buckets and table buckets, and aliases of Object
 * Lambda access points. The first have another API (CreateSession), the others take no PUT. */
static bool is_special_bucket(const char *text) {
        static const char *const suffixes[] = { "--x-s3", "--table-s3", "--ol-s3" };
        size_t n = strlen(text);

        for (size_t i = 0; i < ELEMENTSOF(suffixes); i++) {
                size_t k = strlen(suffixes[i]);
                if (n > k && strcmp(text + n - k, suffixes[i]) == 0)
                        return true;
        }
        return false;
}

static bool check_bucket(const char *text, StrBuf *fault) {
        struct in_addr address;

        if (is_special_bucket(text))
                return refuse(fault,
                              "is not a general purpose bucket, and no other kind (directory "
                              "bucket, table bucket, Object Lambda) is supported");
        if (!is_bucket(text, strlen(text)))
                return refuse(fault, "is not the name of a bucket");
        if (strstr(text, ".."))
                return refuse(fault, "has two dots in a row, which no bucket's name has");
        if (inet_pton(AF_INET, text, &address) == 1)
                return refuse(fault, "looks like an IP address, which no bucket's name does");
        return true;
}

static bool check_s3_prefix(const char *text, StrBuf *fault) {
        const char *bucket = skip_prefix(text, "s3://");
        size_t n = bucket ? strcspn(bucket, "/") : 0;

        if (!bucket || !is_bucket(bucket, n))
                return refuse(fault, "is not s3://bucket/prefix");
        if (path_has_parent(bucket + n) || has_control(text))
                return refuse(fault, "has a component '..' or a control character");
        return true;
}

/* `us-east-1a`, `us-west-2-lax-1a`: a region and a letter. */
static bool is_zone(const char *text) {
        size_t n = strlen(text);

        return n > 3 && text[n - 1] >= 'a' && text[n - 1] <= 'z' && text[n - 2] >= '0' &&
               text[n - 2] <= '9' && text[n - 3] == '-' && text[2] == '-';
}

static bool check_region(const char *text, StrBuf *fault) {
        if (is_zone(text))
                return refuse(fault, "is an availability zone, not a region");
        return (is_letter_or_digit(text[0]) && strlen(text) <= NAME_MAX_BYTES &&
                consists_of(text, "-_")) ||
               refuse(fault, "is not the name of a region");
}

static bool check_storage_class(const char *text, StrBuf *fault) {
        size_t n = strspn(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_");
        return (text[n] == '\0' && n <= NAME_MAX_BYTES) || refuse(fault, "is not a storage class");
}

static bool check_profile(const char *text, StrBuf *fault) {
        return !(has_control(text) || strpbrk(text, "[]")) ||
               refuse(fault, "has a bracket or a control character in it");
}

/* The owner may do everything, or the agent could not. */
static bool check_mode(const char *text, StrBuf *fault) {
        size_t n = strlen(text);
        if (n == 5 && text[0] == '0') { /* as chmod(1) and C take it */
                text++;
                n--;
        }
        return ((n == 3 || n == 4) && strspn(text, "01234567") == n && text[n - 3] == '7') ||
               refuse(fault, "is not the mode of a directory that its owner can use");
}

static bool check_kms_key(const char *text, StrBuf *fault) {
        return consists_of(text, ":/_-") || refuse(fault, "is not the id or ARN of a key");
}

/* What a tag may be made of; what is not ASCII is a letter, or the store says that it is none.
 * @see S3 User Guide, "Categorizing your objects using tags" */
static bool check_tag(const char *text, size_t max, StrBuf *fault) {
        size_t n = 0;

        for (const char *p = text; *p; p++) {
                unsigned char c = (unsigned char)*p;
                if (c < 0x80 && !is_letter_or_digit(*p) && !strchr(" +-=._:/@", *p))
                        return refuse(fault, "has a character that no tag may have");
                n += (c & 0xc0) != 0x80; /* begins a character */
        }
        if (n > max) {
                strbuf_addf(fault, "is longer than %zu characters", max);
                return false;
        }
        return true;
}

static bool check_tag_name(const char *text, StrBuf *fault) {
        if (strncasecmp(text, "aws:", 4) == 0)
                return refuse(fault, "begins with aws:, which is AWS's own");
        return check_tag(text, 128, fault);
}

static bool check_tag_value(const char *text, StrBuf *fault) {
        return check_tag(text, 256, fault);
}

static bool check_account(const char *text, StrBuf *fault) {
        return (strlen(text) == 12 && strspn(text, "0123456789") == 12) ||
               refuse(fault, "is not the number of an account");
}

static bool check_pattern(const char *text, StrBuf *fault) {
        if (text[0] == '\0')
                return refuse(fault, "matches nothing");
        if (text[0] == '/')
                return refuse(fault, "begins with a slash, but member paths are relative");
        return true;
}

/* @see useradd(8): names may also have upper-case letters and dots, and end in a `$` */
static bool check_user(const char *text, StrBuf *fault) {
        uint64_t number;

        if (text[0] != '\0' && strspn(text, "0123456789") == strlen(text))
                return parse_u64_range(text, 0, UINT32_MAX - 1, &number) == 0 ||
                       refuse(fault, "is larger than any user id");
        return (strlen(text) <= NAME_MAX_BYTES && text[0] != '\0' && text[0] != '-' &&
                consists_of(text, "._-$")) ||
               refuse(fault, "is not a user");
}

static bool check_variable(const char *text, StrBuf *fault) {
        return (text[0] != '\0' && consists_of(text, "_*?[]!-")) ||
               refuse(fault, "is not a pattern for names of variables");
}

/* clang-format off */
const Form form_name = { .check = check_name, .what = "a name", .remedy = "use 1 to 64 letters, digits, '.', '_' and '-'" };

const Form form_path = { .check = check_path, .what = "an absolute path", .remedy = "write the whole path, from / on, without '..'", .is_path = true };

const Form form_socket = { .check = check_socket, .what = "an absolute path", .remedy = "write a short whole path, from / on, without '..'", .is_path = true };

const Form form_source_path = { .check = check_source_path, .what = "a path template",
        .remedy = "write the whole path, from / on, without '..'; %d %c %p %t %l %i are the format variables, %% is a percent sign",
        .is_path = true, .variables = FORM_SOURCE_VARIABLES };

const Form form_volume_path = { .check = check_volume_path, .what = "a path template",
        .remedy = "write the whole path, from / on, without '..'; %d %c %p %t %l %i %k %n %h %u are the format variables, %% is a percent sign",
        .is_path = true, .variables = FORM_DESTINATION_VARIABLES };

const Form form_prefix = { .check = check_prefix, .what = "a key template",
        .remedy = "write it as neuron/%d-%c; %d %c %p %t %l %i %k %n %h %u are the format variables, %% is a percent sign",
        .variables = FORM_DESTINATION_VARIABLES };

const Form form_listen = { .check = check_listen, .what = "host:port", .remedy = "write it as 127.0.0.1:9733 or [::1]:9733, the port from 1 to 65535" };

const Form form_bus = { .check = check_bus, .what = "tcp://host:port or ipc://path", .remedy = "write it as tcp://10.0.0.7:7733 or ipc:///run/name.sock" };

const Form form_endpoint = { .check = check_endpoint, .what = "http(s)://host[:port]", .remedy = "write it as https://store.example:9000, without a path" };

const Form form_proxy = { .check = check_proxy, .what = "scheme://host[:port]", .remedy = "write it as http://proxy.example:3128, without a user and a path" };

const Form form_s3_prefix = { .check = check_s3_prefix, .what = "s3://bucket/prefix", .remedy = "write it as s3://bucket/prefix" };

const Form form_bucket = { .check = check_bucket, .what = "the name of a bucket", .remedy = "use 3 to 63 small letters, digits, '-' and '.', a letter or digit first and last" };

const Form form_region = { .check = check_region, .what = "the name of a region", .remedy = "write it as us-east-1" };

const Form form_storage_class = { .check = check_storage_class, .what = "a storage class", .remedy = "write it as STANDARD_IA" };

const Form form_profile = { .check = check_profile, .what = "the name of a profile", .remedy = "write it as it stands in the file, without the brackets" };

const Form form_mode = { .check = check_mode, .what = "a mode", .remedy = "write it as 0755 or 2775, in octal" };

const Form form_kms_key = { .check = check_kms_key, .what = "the id or ARN of a key", .remedy = "write its id, alias/NAME, or the whole ARN from arn: on" };

const Form form_tag_name = { .check = check_tag_name, .what = "the name of a tag", .remedy = "use letters, digits, blanks and + - = . _ : / @, at most 128 of them, and do not begin with aws:" };

const Form form_tag_value = { .check = check_tag_value, .what = "the value of a tag", .remedy = "use letters, digits, blanks and + - = . _ : / @, at most 256 of them" };

const Form form_account = { .check = check_account, .what = "12 digits", .remedy = "write its 12 digits in quotes" };

const Form form_pattern = { .check = check_pattern, .what = "a pattern", .remedy = "write a pattern such as \"*.tmp\" or \"cache/*\"" };

const Form form_user = { .check = check_user, .what = "a user", .remedy = "write a user's name or number" };

const Form form_variable = { .check = check_variable, .what = "a pattern", .remedy = "write a pattern such as \"NEURON_*\"" };

/* clang-format on */

const char *form_find_variable(const char *path_template, const char *letters) {
        for (const char *p = path_template; (p = strchr(p, '%')) && p[1] != '\0'; p += 2)
                if (letters ? strchr(letters, p[1]) != NULL : p[1] != '%')
                        return p;
        return NULL;
}

char *form_fixed_part(const char *path_template) {
        const char *variable = form_find_variable(path_template, NULL);
        _cleanup_(strbuf_done) StrBuf out = STRBUF_INIT;
        size_t n = strlen(path_template);

        if (variable)
                for (n = (size_t)(variable - path_template); n > 0 && path_template[n - 1] != '/';)
                        n--;
        while (n > 0 && path_template[n - 1] == '/')
                n--;
        for (size_t i = 0; i < n; i++) {
                strbuf_add_n(&out, path_template + i, 1);
                if (path_template[i] == '%' && i + 1 < n)
                        i++;
        }
        if (n == 0 && path_template[0] == '/')
                strbuf_add(&out, "/");
        return strbuf_detach(&out);
}

/* The table is read by its columns: name, type and place · limits and default · what people are
 * reported. */
#define AT(type, member) .offset = offsetof(type, member), .size = sizeof(((type *)0)->member)
#define LIST_AT(type, member, count, element)                                                      \
        AT(type, member), .element_size = sizeof(element), .count_offset = offsetof(type, count)

#define W(text, number)                                                                            \
        { .word = (text), .value = (number) }

#define END                                                                                        \
        { .word = NULL }

#define DAYS(n) ((n)*USEC_PER_DAY)
/* clang-format off */
static const KeyWord kinds[] = {
        W("neuron-core-dump", CONFIG_NEURON_CORE_DUMP), W("neuron-profile", CONFIG_NEURON_PROFILE),
        W("process-core", CONFIG_PROCESS_CORE), W("directory", CONFIG_DIRECTORY), END };

static const KeyWord watches[] = {
        W("auto", CONFIG_WATCH_AUTO), W("inotify", CONFIG_WATCH_INOTIFY), W("scan", CONFIG_WATCH_SCAN), END };

static const KeyWord destination_types[] = {
        W("s3", CONFIG_S3), W("volume", CONFIG_VOLUME), END };

static const KeyWord durables[] = {
        W("auto", CONFIG_DURABLE_AUTO), W("true", CONFIG_DURABLE_YES), W("false", CONFIG_DURABLE_NO), END };

static const KeyWord addressings[] = { W("auto", 0), W("path", 0), W("virtual", 0), END };

static const KeyWord encryptions[] = { W("none", 0), W("AES256", 0), W("aws:kms", 0), END };

static const KeyWord after_deliveries[] = { W("keep", false), W("delete", true), END };

static const KeyWord evictions[] = { W("never", false), W("oldest", true), END };

static const KeyWord rendezvous[] = { W("auto", 0), W("off", 0), END };

static const KeyWord automatic[] = { W("auto", 0), END };

static const KeyWord log_levels[] = {
        W("debug", LOG_DEBUG), W("info", LOG_INFO), W("notice", LOG_NOTICE),
        W("warning", LOG_WARNING), W("error", LOG_ERR), END };

static const KeyWord log_formats[] = {
        W("auto", LOG_FORMAT_AUTO), W("journal", LOG_FORMAT_JOURNAL),
        W("text", LOG_FORMAT_TEXT), W("json", LOG_FORMAT_JSON), END };

static const ConfigKey table[] = {
{ "version", KEY_NUMBER, AT(Config, version), .min = 1, .max = 1, .fallback = "1",
  .help = "Version of this file's form; there is only one so far." },

{ "node", KEY_SECTION, .below = "node.", .help = "Who this machine is." },
{ "node.instance_id", KEY_STRING, KEY_RESTART, AT(Config, node.instance_id), .form = &form_name, .fallback = "auto",
  .help = "Name of this machine in every bundle; auto takes DMI's board_asset_tag where it is an EC2 id, else the id of the instance metadata service (IMDSv2), else the host name." },
{ "node.labels", KEY_MAP, AT(Config, node.labels), .max = KEYS_MAP_ENTRIES_MAX, .fallback = "", .example = "{cluster: prod-a}",
  .help = "Free strings that are copied into every manifest." },

{ "state_directory", KEY_STRING, KEY_RESTART, AT(Config, state_directory), .form = &form_path,
  .fallback = "/var/lib/neuron-collectd",
  .help = "Where the agent keeps what it knows of every bundle." },

{ "sources", KEY_ELEMENTS, .below = "sources[].", LIST_AT(Config, sources, n_sources, ConfigSource), .line_offset = offsetof(ConfigSource, line),
  .min = 1, .max = 200,
  .help = "What is collected." },
{ "sources[].name", KEY_STRING, KEY_IDENTITY, AT(ConfigSource, name), .form = &form_name, .example = "core-dumps",
  .help = "Name of the source in manifests, messages and metrics." },
{ "sources[].kind", KEY_CHOICE, AT(ConfigSource, kind), .words = kinds, .example = "neuron-core-dump",
  .help = "What lies there, which decides what belongs together and how it is checked." },
{ "sources[].path", KEY_STRING, AT(ConfigSource, path), .form = &form_source_path, .example = "/tmp/neuron-core-dump/dt-%d-cid-%c",
  .help = "Directory with the runtime's format variables %d %c %p %t %l %i; what comes before the first one is watched.",
  .source = "AWS Neuron documentation: NEURON_RT_LOCAL_CORE_DUMP_DIRECTORY" },
{ "sources[].settle", KEY_TIME, AT(ConfigSource, settle_usec), .max = DAYS(1), .fallback = "10s",
  .help = "Quiet for this long counts as complete, unless something better is known." },
{ "sources[].max_wait", KEY_TIME, AT(ConfigSource, max_wait_usec), .min = USEC_PER_MSEC, .max = DAYS(30), .fallback = "30m",
  .help = "After this long a bundle goes out as it is, labelled incomplete." },
{ "sources[].watch", KEY_CHOICE, AT(ConfigSource, watch), .words = watches, .fallback = "auto",
  .help = "How news is noticed; auto scans only where other nodes' writes raise no events.",
  .source = "inotify(7): events of network file systems are not reported" },
{ "sources[].scan_interval", KEY_TIME, AT(ConfigSource, scan_interval_usec), .min = 100 * USEC_PER_MSEC, .max = DAYS(1), .fallback = "60s",
  .help = "Time between two full scans, which find what events missed." },
{ "sources[].max_files", KEY_NUMBER, KEY_OFF, AT(ConfigSource, max_files), .min = 1, .max = 10000000, .fallback = "100000",
  .help = "Most files of one bundle; 0 means no limit. Names of one directory are collected up to 10 MiB." },
{ "sources[].max_bytes", KEY_BYTES, KEY_OFF, AT(ConfigSource, max_bytes), .min = 1, .max = UINT64_MAX, .fallback = "0",
  .help = "Most bytes of one bundle; 0 means no limit." },
{ "sources[].exclude", KEY_STRINGS, AT(ConfigSource, exclude), .form = &form_pattern, .fallback = "", .example = "[\"*.tmp\"]",
  .help = "fnmatch(3) patterns on the member path; what matches is left out of the bundle." },
{ "sources[].crash_reports", KEY_BOOL, AT(ConfigSource, crash_reports), .fallback = "true",
  .help = "Whether a crash report is made of each core; for process-core alone." },
{ "sources[].destinations", KEY_STRINGS, AT(ConfigSource, destinations), .min = 1, .max = 32, .form = &form_name, .fallback = "",
  .help = "Names of destinations, all of them by default; the first one is the incident's arbiter." },

{ "destinations", KEY_ELEMENTS, .below = "destinations[].", LIST_AT(Config, destinations, n_destinations, ConfigDestination),
  .line_offset = offsetof(ConfigDestination, line), .min = 1, .max = 32,
  .help = "Where bundles go; a bundle is delivered when each of its source's destinations has proof of its copy." },
{ "destinations[].name", KEY_STRING, KEY_IDENTITY, AT(ConfigDestination, name), .form = &form_name, .example = "fsx",
  .help = "Name of the destination in messages, metrics and sources[].destinations." },
{ "destinations[].type", KEY_CHOICE, AT(ConfigDestination, type), .words = destination_types, .example = "volume",
  .help = "An S3 bucket or a mounted volume." },
{ "destinations[].path", KEY_STRING, KEY_VOLUME, AT(ConfigDestination, path), .form = &form_volume_path, .example = "/fsx/neuron/%d-%c",
  .help = "Directory on the volume; besides the runtime's variables also %k (kind), %n (source), %h (host), %u (owner's user name)." },
{ "destinations[].min_free", KEY_SHARE, KEY_VOLUME | KEY_OFF, AT(ConfigDestination, min_free), .max = UINT64_MAX, .fallback = "5%",
  .help = "Free space below which the destination is paused, a size or a share." },
{ "destinations[].durable", KEY_CHOICE, KEY_VOLUME, AT(ConfigDestination, durable), .words = durables, .fallback = "auto",
  .help = "Whether a copy there outlives this node; auto: on a network file system (by its type) it does, on a local one it does not. "
          "`safe to terminate` is printed only when each delivered bundle has a copy that does, such as one in a bucket." },
{ "destinations[].mode", KEY_STRING, KEY_VOLUME, AT(ConfigDestination, mode), .form = &form_mode, .fallback = "0755",
  .help = "Mode of the directories that nodes share: 0755 where all agents have one user id, else 2775 and a `group` whose members they are; the directory of each node below them has 0755." },
{ "destinations[].group", KEY_STRING, KEY_VOLUME, AT(ConfigDestination, group), .form = &form_name, .fallback = "",
  .help = "Group of the directories and files, a name or a number; empty leaves it to the file system." },
{ "destinations[].bucket", KEY_STRING, KEY_S3, AT(ConfigDestination, bucket), .form = &form_bucket, .example = "my-bucket",
  .help = "Name of the bucket, which must exist.", .source = "S3 User Guide: bucket naming rules" },
{ "destinations[].prefix", KEY_STRING, KEY_S3, AT(ConfigDestination, prefix), .max = 800, .form = &form_prefix, .fallback = "neuron/%d-%c",
  .help = "What every key begins with, a template with the variables of destinations[].path; a key has at most 1,024 bytes.",
  .source = "S3 User Guide: object key names" },
{ "destinations[].region", KEY_STRING, KEY_S3, AT(ConfigDestination, region), .form = &form_region, .fallback = "",
  .help = "Region of the bucket, for which requests are signed; empty is AWS_REGION, else AWS_DEFAULT_REGION, else the profile's region, else us-east-1." },
{ "destinations[].endpoint", KEY_STRING, KEY_S3, AT(ConfigDestination, endpoint), .form = &form_endpoint, .fallback = "",
  .help = "Address of an S3-compatible store; empty is AWS, or the value of AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL." },
{ "destinations[].addressing", KEY_STRING, KEY_S3, AT(ConfigDestination, addressing), .words = addressings, .fallback = "auto",
  .help = "Whether the bucket's name stands in the path or in the host name (virtual); auto is virtual on AWS, unless the name has a dot, and path elsewhere." },
{ "destinations[].part_size", KEY_BYTES, KEY_S3, AT(ConfigDestination, part_size_bytes), .min = 5 * MIB, .max = 5 * GIB, .fallback = "8MiB",
  .why_min = "the smallest part S3 accepts",
  .help = "Smallest size of an uploaded part; it grows so that 10,000 parts are enough.",
  .source = "S3 User Guide: multipart upload limits, parts of 5 MiB to 5 GiB, 10,000 of them" },
{ "destinations[].connections", KEY_NUMBER, KEY_S3, AT(ConfigDestination, connections), .min = 1, .max = 64, .fallback = "4",
  .help = "Most parts that are under way at a time; fewer where limits.memory has no room for them." },
{ "destinations[].ca_file", KEY_STRING, KEY_S3, AT(ConfigDestination, ca_file), .form = &form_path, .fallback = "",
  .help = "File with the certificates to trust, in PEM; empty is the system's." },
{ "destinations[].proxy", KEY_STRING, KEY_S3, AT(ConfigDestination, proxy), .form = &form_proxy, .fallback = "",
  .help = "Proxy for requests to the store; empty leaves it to the usual environment variables." },
{ "destinations[].profile", KEY_STRING, KEY_S3, AT(ConfigDestination, profile), .max = 128, .form = &form_profile, .fallback = "",
  .help = "Profile in AWS's shared config and credentials files that names the credentials; empty is the SDKs' usual order." },
{ "destinations[].sse", KEY_STRING, KEY_S3, AT(ConfigDestination, sse), .words = encryptions, .fallback = "none",
  .help = "Encryption that is requested for each object.", .source = "S3 API: x-amz-server-side-encryption" },
{ "destinations[].kms_key_id", KEY_STRING, KEY_S3, AT(ConfigDestination, kms_key_id), .max = 2048, .form = &form_kms_key, .fallback = "",
  .help = "Id or ARN of the key for sse: aws:kms; empty is the bucket's default key.", .source = "S3 API: x-amz-server-side-encryption-aws-kms-key-id" },
{ "destinations[].storage_class", KEY_STRING, KEY_S3, AT(ConfigDestination, storage_class), .form = &form_storage_class, .fallback = "",
  .help = "Storage class of the objects; empty is the bucket's default.", .source = "S3 API: x-amz-storage-class" },
{ "destinations[].tags", KEY_MAP, KEY_S3, AT(ConfigDestination, tags), .max = 10, .form = &form_tag_value, .name_form = &form_tag_name, .fallback = "",
  .example = "{team: ml}",
  .help = "Tags of the objects, at most ten.", .source = "S3 User Guide: at most 10 tags an object; names of 128 and values of 256 characters" },
{ "destinations[].expected_bucket_owner", KEY_STRING, KEY_S3, AT(ConfigDestination, expected_bucket_owner), .form = &form_account, .fallback = "",
  .help = "Number of the account that must own the bucket, else requests are refused.", .source = "S3 API: x-amz-expected-bucket-owner" },
{ "destinations[].request_timeout", KEY_TIME, KEY_S3, AT(ConfigDestination, request_timeout_usec), .min = USEC_PER_SEC, .max = USEC_PER_HOUR, .fallback = "60s",
  .help = "A request without progress for this long is tried again." },

{ "limits", KEY_SECTION, .below = "limits.", .help = "What the agent may use: the job comes first." },
{ "limits.upload_rate", KEY_RATE, KEY_OFF, AT(Config, limits.upload_rate), .min = KIB, .max = TIB, .fallback = "0",
  .help = "Bytes per second of all destinations of this node together, headers, TLS and retries included; 0 means no limit." },
{ "limits.upload_windows", KEY_ELEMENTS, .below = "limits.upload_windows[].", LIST_AT(Config, limits.upload_windows, limits.n_upload_windows, ConfigWindow), .max = 48,
  .help = "Times of the local day with a rate of their own; where two overlap, the first one counts." },
{ "limits.upload_windows[].from", KEY_MINUTE, AT(ConfigWindow, from_minute), .max = 24 * 60 - 1, .example = "\"08:00\"",
  .help = "Begin of the window, local time." },
{ "limits.upload_windows[].to", KEY_MINUTE, AT(ConfigWindow, to_minute), .max = 24 * 60 - 1, .example = "\"20:00\"",
  .help = "End of the window, local time; before `from` it is the next day's." },
{ "limits.upload_windows[].rate", KEY_RATE, KEY_OFF, AT(ConfigWindow, rate), .min = KIB, .max = TIB, .example = "50MiB/s",
  .help = "limits.upload_rate within the window." },
{ "limits.request_rate", KEY_NUMBER, KEY_OFF, AT(Config, limits.request_rate), .min = 1, .max = 100000, .fallback = "200",
  .help = "S3 requests per second, of all destinations together, retries included; a second's worth can be saved up; 0 means no limit." },
{ "limits.read_rate", KEY_RATE, KEY_OFF, AT(Config, limits.read_rate), .min = KIB, .max = TIB, .fallback = "0",
  .help = "Bytes per second read from sources to pack them; 0 means no limit." },
{ "limits.memory", KEY_BYTES, AT(Config, limits.memory_bytes), .min = 16 * MIB, .max = TIB, .fallback = "64MiB",
  .why_min = "the least that one bundle under way needs",
  .help = "All buffers of bundling and uploading together." },
{ "limits.memory_max", KEY_BYTES, AT(Config, limits.memory_max_bytes), .min = 16 * MIB, .max = TIB, .fallback = "256MiB",
  .why_min = "the least that one bundle under way needs",
  .help = "The same for a bundle whose parts cannot fit otherwise." },
{ "limits.compression_threads", KEY_NUMBER, AT(Config, limits.compression_threads), .min = 1, .max = 1024, .words = automatic, .fallback = "auto",
  .help = "Threads that compress; auto is all CPUs allowed, at idle priority, resting while others wait for a CPU (PSI)." },
{ "limits.compression_level", KEY_NUMBER, AT(Config, limits.compression_level), .max = 19, .fallback = "3",
  .help = "Level of zstd, 1 to 19; 0 only stores." , .source = "zstd(1): levels 1 to 19" },

{ "retry", KEY_SECTION, .below = "retry.", .help = "What happens after a failure." },
{ "retry.initial", KEY_TIME, AT(Config, retry.initial_usec), .min = USEC_PER_MSEC, .max = USEC_PER_HOUR, .fallback = "1s",
  .help = "Wait after the first failure; it doubles with each further one." },
{ "retry.maximum", KEY_TIME, AT(Config, retry.maximum_usec), .min = USEC_PER_MSEC, .max = DAYS(1), .fallback = "5m",
  .help = "Longest wait between tries of a bundle; a destination is tried at least once a minute, without end." },
{ "retry.quarantine_after", KEY_NUMBER, AT(Config, retry.quarantine_after), .min = 1, .max = 1000000, .fallback = "20",
  .help = "Failures by its own fault, at each destination that lacks it, after which a bundle is quarantined; a refusal counts only if the destination has accepted another bundle since." },
{ "retry.orphan_age", KEY_TIME, AT(Config, retry.orphan_age_usec), .min = USEC_PER_HOUR, .max = DAYS(3650), .fallback = "24h",
  .help = "Multipart uploads below our prefix that are abandoned and older than this are reported and aborted." },

{ "retention", KEY_SECTION, .below = "retention.", .help = "What happens to sources after delivery." },
{ "retention.after_delivery", KEY_CHOICE, AT(Config, retention.delete_after_delivery), .words = after_deliveries, .fallback = "keep",
  .help = "With keep the agent never deletes a source: max_use and keep_free are only reported; keep_free_undelivered holds." },
{ "retention.keep_for", KEY_TIME, AT(Config, retention.keep_for_usec), .max = DAYS(3650), .fallback = "24h",
  .help = "How long a delivered source is kept, with delete." },
{ "retention.max_use", KEY_SHARE, KEY_OFF, AT(Config, retention.max_use), .max = UINT64_MAX, .fallback = "10%",
  .help = "Share of the source's file system, or size, above which keep_for is shortened, oldest delivered first." },
{ "retention.keep_free", KEY_SHARE, KEY_OFF, AT(Config, retention.keep_free), .max = UINT64_MAX, .fallback = "15%",
  .help = "Free space, a share or a size, that is kept for the job." },
{ "retention.keep_free_undelivered", KEY_SHARE, KEY_OFF, AT(Config, retention.keep_free_undelivered), .max = UINT64_MAX, .fallback = "3%",
  .help = "Free space below which undelivered bundles are discarded whose files are removed at the source and only held by links: of the owner whose links take most the oldest." },
{ "retention.evict_undelivered", KEY_CHOICE, AT(Config, retention.evict_oldest), .words = evictions, .fallback = "never",
  .help = "With oldest, which needs after_delivery: delete, and only when keep_free is violated, bundles are evicted undelivered; their rows stay." },
{ "retention.history", KEY_TIME, AT(Config, retention.history_usec), .min = USEC_PER_SEC, .max = DAYS(3650), .fallback = "90d",
  .help = "How long the row of a bundle that has ended stays, and at most 100,000 of them; while its files are at the source it stays." },

{ "agreement", KEY_SECTION, .below = "agreement.", .help = "How the nodes of a job agree on what its failures are called." },
{ "agreement.enabled", KEY_BOOL, KEY_RESTART, AT(Config, agreement.enabled), .fallback = "true",
  .help = "Whether nodes agree at all; without it each names its failures alone." },
{ "agreement.listen", KEY_STRING, AT(Config, agreement.listen), .form = &form_bus, .fallback = "tcp://0.0.0.0:7733",
  .help = "Address for other agents; without key_file only loopback and ipc addresses are opened." },
{ "agreement.peers", KEY_STRINGS, AT(Config, agreement.peers), .form = &form_bus, .fallback = "", .example = "[\"tcp://10.0.0.7:7733\"]",
  .help = "Further agents to connect to." },
{ "agreement.rendezvous", KEY_STRING, AT(Config, agreement.rendezvous), .words = rendezvous, .fallback = "auto",
  .help = "With auto the agents of a job meet at the host in NEURON_RT_ROOT_COMM_ID, else MASTER_ADDR, on the port of `listen`." },
{ "agreement.settle", KEY_TIME, AT(Config, agreement.settle_usec), .max = 10 * USEC_PER_MINUTE, .fallback = "5s",
  .help = "How long other failed processes are waited for when none of them has a cluster id." },
{ "agreement.window", KEY_TIME, AT(Config, agreement.window_usec), .min = USEC_PER_SEC, .max = DAYS(1), .fallback = "2m",
  .help = "A process that fails within this long of the newest one of a failure belongs to it, unless it was started since; one with its cluster id always does." },
{ "agreement.key_file", KEY_STRING, AT(Config, agreement.key_file), .form = &form_path, .fallback = "",
  .help = "Up to four lines ID:64 hex digits, as `neuron-collect key new` writes them: the first signs messages, all verify; root or the agent's user owns it, its group may not write it, and others have no access." },
{ "agreement.trusted_uids", KEY_STRINGS, AT(Config, agreement.trusted_uids), .max = 64, .form = &form_user, .fallback = "", .example = "[990, 991]",
  .help = "Users, names or numbers, as which agents of other nodes run: on a volume or a shared source what nodes tell each other counts only from this agent's own user, from these, and from root unless the server maps it to another user." },

{ "api", KEY_SECTION, .below = "api.", .help = "How clients reach the agent." },
{ "api.socket", KEY_STRING, KEY_RESTART, AT(Config, api.socket), .form = &form_socket, .fallback = "/run/neuron-collectd/api.sock",
  .help = "Unix socket of the HTTP API." },
{ "api.listen", KEY_STRING, KEY_RESTART, AT(Config, api.listen), .form = &form_listen, .fallback = "", .example = "127.0.0.1:9733",
  .help = "host:port where the API may be read (GET only), /metrics, /healthz and /readyz among it; empty is off." },

{ "hook", KEY_SECTION, .below = "hook.", .help = "How the runtime's hook, neuron-dump, notifies the agent of a dump." },
{ "hook.socket", KEY_STRING, KEY_RESTART, AT(Config, hook.socket), .form = &form_socket, .fallback = "/run/neuron-collectd/hook.sock",
  .help = "Unix socket for notes." },
{ "hook.mailbox", KEY_STRING, KEY_RESTART, AT(Config, hook.mailbox), .form = &form_path, .fallback = "/var/lib/neuron-collectd/mailbox",
  .help = "Directory for notes of hooks that get no answer from the agent." },
{ "hook.deadline", KEY_TIME, AT(Config, hook.deadline_usec), .min = 10 * USEC_PER_MSEC, .max = USEC_PER_MINUTE, .fallback = "2s",
  .help = "How long the hook may wait for the snapshot." },
{ "hook.allow_prefixes", KEY_STRINGS, AT(Config, hook.allow_prefixes), .form = &form_s3_prefix, .fallback = "", .example = "[\"s3://my-bucket/dumps\"]",
  .help = "Where the hook's --s3-output-prefix may point; by default below the destination's own fixed prefix." },

{ "snapshot", KEY_SECTION, .below = "snapshot.", .help = "What is noted of the hardware and the processes when a dump appears." },
{ "snapshot.enabled", KEY_BOOL, AT(Config, snapshot.enabled), .fallback = "true",
  .help = "Whether snapshots are taken." },
{ "snapshot.sysfs_root", KEY_STRING, AT(Config, snapshot.sysfs_root), .form = &form_path, .fallback = "/sys",
  .help = "Where sysfs is mounted." },
{ "snapshot.device_directory", KEY_STRING, AT(Config, snapshot.device_directory), .form = &form_path, .fallback = "/dev",
  .help = "Where device nodes lie." },
{ "snapshot.proc_root", KEY_STRING, AT(Config, snapshot.proc_root), .form = &form_path, .fallback = "/proc",
  .help = "Where procfs is mounted." },
{ "snapshot.probe_timeout", KEY_TIME, AT(Config, snapshot.probe_timeout_usec), .min = 100 * USEC_PER_MSEC, .max = 10 * USEC_PER_MINUTE, .fallback = "5s",
  .help = "Longest time of one probe." },
{ "snapshot.probe_bytes", KEY_BYTES, AT(Config, snapshot.probe_bytes), .min = 4 * KIB, .max = GIB, .fallback = "4MiB",
  .help = "Largest output of one probe." },
{ "snapshot.environment", KEY_STRINGS, AT(Config, snapshot.environment), .form = &form_variable, .fallback = "NEURON_* XLA_* RANK WORLD_SIZE SLURM_* FI_*",
  .help = "Patterns of environment variables that the agent may record, beside those that tell the job and rank of a process (docs/API.md lists them), which it always may; a name that looks like a secret never is. The hook's own record goes by the default." },
{ "snapshot.commands", KEY_ELEMENTS, .below = "snapshot.commands[].", LIST_AT(Config, snapshot.commands, snapshot.n_commands, ConfigCommand), .max = 32,
  .help = "Further programs whose output becomes part of a snapshot. A probe reads them from the file, never from the agent, whose variables it does not have for ${NAME}." },
{ "snapshot.commands[].name", KEY_STRING, KEY_IDENTITY, AT(ConfigCommand, name), .form = &form_name, .example = "neuron-ls",
  .help = "Name of the output in the snapshot." },
{ "snapshot.commands[].run", KEY_STRINGS, AT(ConfigCommand, run), .min = 1, .max = 64, .example = "[/opt/aws/neuron/bin/neuron-ls, --json-output]",
  .help = "Program, with its whole path, and arguments; no shell is involved." },
{ "snapshot.commands[].timeout", KEY_TIME, AT(ConfigCommand, timeout_usec), .min = 100 * USEC_PER_MSEC, .max = 10 * USEC_PER_MINUTE, .fallback = "20s",
  .help = "Longest time of one run." },

{ "log", KEY_SECTION, .below = "log.", .help = "What is logged, and how." },
{ "log.level", KEY_CHOICE, AT(Config, log.level), .words = log_levels, .fallback = "info",
  .help = "Least important messages that are still written." },
{ "log.format", KEY_CHOICE, AT(Config, log.format), .words = log_formats, .fallback = "auto",
  .help = "Form of messages; auto is the journal under systemd, else text on stderr." },

};

/* Names that are no keys, but for which there is a better message than "unknown key". */
#define OF_A_LATER_VERSION .fault = "is not available in this version", .remedy = "delete the line"
static const ConfigRefusedKey refused[] = {
{ "limits.fleet_rate", OF_A_LATER_VERSION },
{ "dedupe_neff", OF_A_LATER_VERSION },
{ "sampling", OF_A_LATER_VERSION },
{ "redaction", OF_A_LATER_VERSION },
{ "encryption", OF_A_LATER_VERSION },
};

/* clang-format on */

static_assert(ELEMENTSOF(table) <= KEYS_MAX, "KEYS_MAX is too small for the table");

const ConfigKey *keys_all(size_t *ret_n) {
        *ret_n = ELEMENTSOF(table);
        return table;
}

const ConfigKey *keys_get(const char *name) {
        for (size_t i = 0; i < ELEMENTSOF(table); i++)
                if (strcmp(table[i].name, name) == 0)
                        return &table[i];
        return NULL;
}

static const char *leaf_of(const char *name) {
        const char *dot = strrchr(name, '.');
        return dot ? dot + 1 : name;
}

static bool has_prefix(const char *name, const char *prefix) {
        size_t n = (size_t)(leaf_of(name) - name);
        return strlen(prefix) == n && memcmp(name, prefix, n) == 0;
}

const char *keys_leaf(const ConfigKey *key) {
        return leaf_of(key->name);
}

bool keys_is_child(const ConfigKey *key, const char *prefix) {
        return has_prefix(key->name, prefix);
}

const ConfigKey *keys_next_child(const ConfigKey *after, const char *prefix) {
        for (const ConfigKey *key = after ? after + 1 : table; key < table + ELEMENTSOF(table);
             key++)
                if (keys_is_child(key, prefix))
                        return key;
        return NULL;
}

const ConfigRefusedKey *keys_find_refused(const char *prefix, const char *leaf) {
        for (size_t i = 0; i < ELEMENTSOF(refused); i++)
                if (strcmp(leaf_of(refused[i].name), leaf) == 0 &&
                    has_prefix(refused[i].name, prefix))
                        return &refused[i];
        return NULL;
}

static const struct {
        const char *name, *remedy;
} type_texts[N_KEY_TYPES] = {
        [KEY_SECTION] = { "a mapping", "write its keys below it, indented, one a line" },
        [KEY_ELEMENTS] = { "a list", "write its entries below it, each beginning with `- `" },
        [KEY_STRING] = { "a string", "write one value" },
        [KEY_STRINGS] = { "a list of strings", "write it as [first, second]" },
        [KEY_MAP] = { "a mapping of strings", "write it as {name: value, name2: value2}" },
        [KEY_CHOICE] = { "a word", "write one of the words" },
        [KEY_BOOL] = { "a boolean", "write true or false" },
        [KEY_NUMBER] = { "a whole number", "write decimal digits only" },
        [KEY_BYTES] = { "a size", "write a whole number with a unit, such as 64KiB, 8MiB or 1GiB" },
        [KEY_RATE] = { "a rate", "write a size per second, such as 50MiB/s, or 0 for no limit" },
        [KEY_TIME] = { "a time",
                       "write a whole number with a unit, such as 250ms, 5s, 10m, 2h or 7d" },
        [KEY_SHARE] = { "a size or a share", "write a share such as 5% or a size such as 10GiB" },
        [KEY_MINUTE] = { "a time of the day",
                         "write hours and minutes in quotes, such as \"08:00\"" },
};

const char *keys_type_name(const ConfigKey *key) {
        return type_texts[key->type].name;
}

const char *keys_type_remedy(const ConfigKey *key) {
        return type_texts[key->type].remedy;
}
