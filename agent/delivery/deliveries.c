/* Answers questions about the deliveries of one bundle. It changes nothing: results are recorded in
 * scheduler_results.c, and the row is written by agent/store. */
#include "agent/delivery/deliveries.h"

#include <string.h>

#include "lib/base/strbuf.h"

DeliveryRecord *deliveries_find(const Bundle *b, const char *destination) {
        for (size_t i = 0; i < b->rec.n_deliveries; i++)
                if (strcmp(b->rec.deliveries[i].destination, destination) == 0)
                        return &b->rec.deliveries[i];
        return NULL;
}

static size_t tries_index(const Bundle *b, const DeliveryRecord *delivery) {
        return MIN((size_t)(delivery - b->rec.deliveries), (size_t)BUNDLE_TRIES_MAX - 1);
}

BundleTries *deliveries_tries(Bundle *b, const DeliveryRecord *delivery) {
        return &b->shipping.tries[tries_index(b, delivery)];
}

bool deliveries_has_failed(const Bundle *b, const DeliveryRecord *delivery) {
        return b->shipping.tries[tries_index(b, delivery)].failed;
}

bool deliveries_is_given_up(const Config *config, const DeliveryRecord *delivery) {
        return delivery->state != DELIVERY_DONE &&
               delivery->attempts >= config->retry.quarantine_after;
}

bool deliveries_are_given_up(const Config *config, const Bundle *b) {
        bool any = false;
        for (size_t i = 0; i < b->rec.n_deliveries; i++) {
                if (b->rec.deliveries[i].state == DELIVERY_DONE)
                        continue;
                if (!deliveries_is_given_up(config, &b->rec.deliveries[i]))
                        return false;
                any = true;
        }
        return any;
}

const char *deliveries_given_up_error(const Config *config, const Bundle *b) {
        for (size_t i = 0; i < b->rec.n_deliveries; i++)
                if (deliveries_is_given_up(config, &b->rec.deliveries[i]))
                        return b->rec.deliveries[i].last_error;
        return NULL;
}

bool deliveries_are_done(const Bundle *b) {
        for (size_t i = 0; i < b->rec.n_deliveries; i++)
                if (b->rec.deliveries[i].state != DELIVERY_DONE)
                        return false;
        return true;
}

bool deliveries_are_done_elsewhere(const Bundle *b, const DeliveryRecord *but) {
        for (size_t i = 0; i < b->rec.n_deliveries; i++)
                if (&b->rec.deliveries[i] != but && b->rec.deliveries[i].state == DELIVERY_DONE)
                        return true;
        return false;
}

unsigned deliveries_n_attempts(const Bundle *b) {
        unsigned n = 0;
        for (size_t i = 0; i < b->rec.n_deliveries; i++)
                if (b->rec.deliveries[i].state != DELIVERY_DONE)
                        n += b->rec.deliveries[i].attempts;
        return n;
}

bool deliveries_have_object(Bundle *b) {
        for (size_t i = 0; i < b->rec.n_deliveries; i++)
                if (deliveries_tries(b, &b->rec.deliveries[i])->has_object)
                        return true;
        return false;
}

char *deliveries_list_pending(const Bundle *b) {
        StrBuf text = STRBUF_INIT;
        for (size_t i = 0; i < b->rec.n_deliveries; i++)
                if (b->rec.deliveries[i].state != DELIVERY_DONE)
                        strbuf_addf(&text, "%s%s", text.n ? ", " : "waits for ",
                                    b->rec.deliveries[i].destination);
        return strbuf_detach(&text);
}
