/* The rule by which links stay, are rechecked or go, whoever asks: intake when a bundle ends, when
 * late files were linked, and in the sweep after a crash.
 *
 * A row is the truth: links without one are only unknown. Only the source of a bundle rechecks or
 * releases links of a delivered one, since the list of links is that of all sources below one
 * directory. What a row marks as held is released by the retention runner, which takes the mark off
 * last. */
#include "agent/retention/link_rule.h"

static bool is_delivered(const BundleRecord *rec) {
        return rec->state == BUNDLE_DELIVERED || bundle_record_is_redelivery(rec);
}

/* Late files of a bundle: they are its next supplement once it is delivered. A bundle that vanished
 * may come back. */
static LinkFate rule_of_late(const LinkFacts *f) {
        if (!f->is_of_source)
                return LINKS_KEEP;
        if (is_delivered(f->base))
                return LINKS_RECHECK;
        return f->base->state == BUNDLE_CANCELLED || f->base->state == BUNDLE_EVICTED
                       ? LINKS_RELEASE
                       : LINKS_KEEP;
}

LinkFate link_rule(const LinkFacts *f) {
        const BundleRecord *rec = f->rec;
        if (!rec)
                return f->base ? rule_of_late(f) : LINKS_UNKNOWN;
        if (is_delivered(rec) && !f->is_of_source)
                return LINKS_KEEP;
        if (is_delivered(rec) && !f->all_is_shipped)
                return LINKS_RECHECK;
        return bundle_state_is_terminal(rec->state) && !rec->links_held ? LINKS_RELEASE
                                                                        : LINKS_KEEP;
}
