/* A hook's note from a stranger, and the redaction that all of its text goes through. Beyond not
 * crashing: what is taken keeps the bounds that its readers rely on, and can be composed, taken and
 * composed again with the same result. */
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/redact.h"
#include "lib/neuron/note.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void check(bool claim) {
        if (!claim)
                abort();
}

static void check_name(const char *name) {
        check(!name || (name[0] != '\0' && name[0] != '.' && !strchr(name, '/')));
}

static void check_note(const HookNote *note) {
        check(strlen(note->id) == NOTE_ID_SIZE - 1);
        check(note->n_extra <= NOTE_EXTRA_MAX && note->environment);
        check_name(note->record_name);
        check_name(note->snapshot_name);
        check(note->job.rank >= -1 && note->job.world_size >= -1);
        for (const char *s = note->job.key; *s; s++)
                check(*s > ' ' && *s < 0x7f);
        size_t n = 0;
        for (; note->environment[n]; n++)
                check(strchr(note->environment[n], '=') != NULL);
        check(n <= NOTE_VARIABLES_MAX);
        for (size_t i = 0; i < note->n_extra; i++)
                check(note->extra[i].name != NULL);
}

static void compose(const HookNote *note, StrBuf *ret) {
        int r = hook_note_format(note, NULL, ret);
        check(r == 0 && ret->n <= NOTE_MAX_BYTES);
}

static void check_note_text(const void *data, size_t n) {
        _cleanup_(hook_note_done) HookNote note = { 0 }, again = { 0 };
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        const char *why = NULL;
        int r = hook_note_parse(data, n, NULL, &note, &why);
        check(r == 0 || (r == NOTE_E_REFUSED && why));
        if (r != 0)
                return;
        check_note(&note);
        compose(&note, &b);
        check(hook_note_parse(b.text, b.n, NULL, &again, &why) == 0);
        check_note(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
        _cleanup_(strbuf_done) StrBuf out = STRBUF_INIT, list = STRBUF_INIT;
        check_note_text(data, n);
        redact_text(&out, (const char *)data, n);
        check(strbuf_error(&out) == 0);
        strbuf_add(&list, "[");
        redact_cmdline(&list, (const char *)data, n);
        check(strbuf_error(&list) == 0);
        return 0;
}
