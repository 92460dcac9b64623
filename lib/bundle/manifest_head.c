/* A look at the beginning of a manifest of ours, without the tree of all its members. */
#include <errno.h>
#include <string.h>

#include "lib/base/cleanup.h"
#include "lib/base/parse.h"
#include "lib/bundle/manifest.h"

/* What follows the section: manifest_write() begins each section on a line of its own. */
static const char section_end[] = ",\n \"node\": ";

void manifest_head_done(ManifestHead *h) {
        free(h->reasons);
        free(h->parts);
        *h = (ManifestHead){ 0 };
}

static int read_digest(const json_t *v, uint8_t ret[static SHA256_SIZE]) {
        const char *hex = json_string_value(v);
        return hex ? parse_hex_bytes(hex, ret, SHA256_SIZE) : -EINVAL;
}

static int read_parts(const json_t *list, ManifestHead *h) {
        size_t i, n = json_array_size(list);
        json_t *part;
        if (n == 0)
                return -EINVAL;
        h->parts = calloc(n, sizeof *h->parts);
        if (!h->parts)
                return -ENOMEM;
        json_array_foreach(list, i, part) {
                json_int_t bytes = json_integer_value(json_object_get(part, "bytes"));
                if (bytes <= 0 ||
                    read_digest(json_object_get(part, "sha256"), h->parts[i].sha256) < 0)
                        return -EINVAL;
                h->parts[i].bytes = (uint64_t)bytes;
        }
        h->n_parts = n;
        return 0;
}

static int read_bundle(const json_t *bundle, ManifestHead *h) {
        const char *id = json_string_value(json_object_get(bundle, "id"));
        const json_t *bytes = json_object_get(bundle, "bytes"),
                     *reasons = json_object_get(bundle, "reasons");
        if (!id || strlen(id) >= sizeof h->id || !json_is_integer(bytes) ||
            json_integer_value(bytes) < 0 || !json_is_array(reasons))
                return -EINVAL;
        if (read_digest(json_object_get(bundle, "plan"), h->plan) < 0)
                return -EINVAL;
        strcpy(h->id, id);
        h->bytes = (uint64_t)json_integer_value(bytes);
        h->complete = json_is_true(json_object_get(bundle, "complete"));
        h->reasons = json_dumps(reasons, JSON_COMPACT);
        return h->reasons ? read_parts(json_object_get(bundle, "parts"), h) : -ENOMEM;
}

int manifest_read_head(const char *text, size_t n, ManifestHead *ret) {
        const char *end = memmem(text, n, section_end, sizeof section_end - 1);
        if (!end)
                return -EINVAL;
        size_t head = (size_t)(end - text);
        _cleanup_free_ char *copy = malloc(head + 1);
        if (!copy)
                return -ENOMEM;
        memcpy(copy, text, head);
        copy[head] = '}'; /* where the next section would begin */
        json_t *document = json_loadb(copy, head + 1, JSON_REJECT_DUPLICATES, NULL);
        const char *schema = json_string_value(json_object_get(document, "schema"));
        _cleanup_(manifest_head_done) ManifestHead h = { 0 };
        int r = -EINVAL;
        if (schema && strcmp(schema, "neuron-collectd/manifest/1") == 0)
                r = read_bundle(json_object_get(document, "bundle"), &h);
        json_decref(document);
        if (r < 0)
                return r;
        *ret = h;
        h = (ManifestHead){ 0 };
        return 0;
}
