/* By hand: figures of the bus with real children, in one process that plays all agents.
 *
 *   bus_star            200 nodes around a centre agree on a failure without a store
 *   bus_star zero       the same, of which none has a cluster id, so that it settles
 *   bus_star flood      strangers that connect, and unsigned messages as fast as they go */
#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <nanomsg/bus.h>
#include <nanomsg/nn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "agent/peers/agreement.h"
#include "agent/peers/bus.h"
#include "lib/base/cleanup.h"
#include "lib/base/log.h"
#include "lib/base/spawn.h"
#include "lib/event/bus_child.h"
#include "lib/event/timer.h"

#define PORT 17733
#define ADDRESS "tcp://127.0.0.1:17733"
#define N_NODES 200
#define KEY "0123456789abcdef"
#define SPREAD_USEC USEC_PER_SEC /* claims come within it */
#define SETTLE_USEC (5 * USEC_PER_SEC)

typedef struct Node {
        Bus *bus;
        Agreement *agreement;
        sd_event_source *timer;
        char id[16];
        Claim claim;
        uint64_t claims_at_usec, decided_usec; /* 0 = not yet */
        bool has_claimed;
        unsigned n_sends;
} Node;

static Node nodes[N_NODES];
static sd_event *event;
static bool has_cluster_id = true;

static _Noreturn void fail(const char *what) {
        fprintf(stderr, "bus_star: %s\n", what);
        exit(1);
}

static void require(bool claim, const char *what) {
        if (!claim)
                fail(what);
}

static BusView view(const Node *n) {
        BusView v;
        bus_view(n->bus, &v);
        return v;
}

/* ---- agreeing ---- */

static void drive(Node *n) {
        Action action;
        uint64_t now = clock_boottime_usec();
        if (n->claims_at_usec && !n->has_claimed && now >= n->claims_at_usec) {
                n->has_claimed = true;
                n->claim.event_usec = (int64_t)now;
                require(agreement_claim(n->agreement, KEY, &n->claim, false, (int64_t)now) == 0,
                        "cannot claim");
        }
        while (agreement_next_action(n->agreement, (int64_t)now, &action) != ACTION_NONE)
                if (action.kind == ACTION_SEND)
                        n->n_sends += bus_send(n->bus, action.message) == 0;
        if (n->has_claimed && !n->decided_usec && agreement_find(n->agreement, KEY, &n->claim))
                n->decided_usec = clock_boottime_usec();
        int64_t due = agreement_next_time(n->agreement);
        if (n->claims_at_usec && !n->has_claimed)
                due = MIN(due, (int64_t)n->claims_at_usec);
        if (due != AGREEMENT_NEVER)
                (void)timer_rearm(n->timer, due > (int64_t)now ? (uint64_t)due - now : 0);
}

static int on_timer(sd_event_source *s, uint64_t usec, void *userdata) {
        (void)s, (void)usec;
        drive(userdata);
        return 0;
}

static void on_message(const Message *m, void *userdata) {
        Node *n = userdata;
        if (!n->agreement)
                return;
        (void)agreement_hear(n->agreement, m, (int64_t)clock_boottime_usec());
        drive(n);
}

static void start_bus(Node *n, bool is_centre) {
        static char *peers[] = { (char *)ADDRESS, NULL }, *none[] = { NULL };
        BusOptions o = { .event = event,
                         .clock = clock_system(),
                         .instance_id = n->id,
                         .listen = is_centre ? ADDRESS : "",
                         .peers = is_centre ? none : peers,
                         .key_file = "",
                         .on_message = on_message,
                         .userdata = n };
        require(bus_new(&n->bus, &o) == 0, "cannot start the bus");
}

static void start_node(size_t i) {
        Node *n = &nodes[i];
        (void)snprintf(n->id, sizeof n->id, "i-%05zu", i);
        n->claim = (Claim){ .pid = 100 + (uint32_t)i,
                            .start_ticks = 1,
                            .revision = 1,
                            .rank = (int64_t)i,
                            .world_size = N_NODES,
                            .state = CLAIM_FAILED,
                            .bundle_state = CLAIM_BUNDLE_PENDING,
                            .has_error = true,
                            .error_code = 1200,
                            .started_usec = (int64_t)clock_boottime_usec() - 60000000 };
        (void)snprintf(n->claim.boot_id, sizeof n->claim.boot_id, "%032zu", i);
        strcpy(n->claim.instance_id, n->id);
        strcpy(n->claim.cluster_id, has_cluster_id ? "d99e36ea74c263ca" : "0000000000000000");
        strcpy(n->claim.date_time, "20260527-051233");
        AgreementOptions o = { .instance_id = n->id,
                               .settle_usec = SETTLE_USEC,
                               .window_usec = 120000000,
                               .seed = i };
        require(agreement_new(&n->agreement, &o) == 0 &&
                        agreement_set_role(n->agreement, KEY, i ? ROLE_LEAF : ROLE_CENTRE) == 0 &&
                        timer_arm(&n->timer, &(TimerOptions){ .event = event,
                                                              .usec = USEC_PER_DAY,
                                                              .slack_usec = 1,
                                                              .handler = on_timer,
                                                              .userdata = n }) == 0,
                "cannot start a node");
        start_bus(n, i == 0);
}

static size_t count_nodes(bool (*is)(const Node *n)) {
        size_t count = 0;
        for (size_t i = 0; i < N_NODES; i++)
                count += is(&nodes[i]);
        return count;
}

static bool is_connected(const Node *n) {
        return view(n).n_connected > 0;
}

static bool is_decided(const Node *n) {
        return n->decided_usec > 0;
}

static void run_for(uint64_t usec) {
        uint64_t until = clock_boottime_usec() + usec;
        while (clock_boottime_usec() < until)
                require(sd_event_run(event, 10 * USEC_PER_MSEC) >= 0, "the loop failed");
}

static int by_value(const void *a, const void *b) {
        uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
        return (x > y) - (x < y);
}

static int star(void) {
        uint64_t first_claim = UINT64_MAX, last_claim = 0, waits[N_NODES], max_sends = 0;
        unsigned seed = 1;
        for (size_t i = 0; i < N_NODES; i++)
                start_node(i);
        while (count_nodes(is_connected) < N_NODES || view(&nodes[0]).n_connected < N_NODES - 1)
                run_for(100 * USEC_PER_MSEC);
        run_for(5 * USEC_PER_SEC);
        uint64_t bytes_before = view(&nodes[0]).n_sent_bytes, start = clock_boottime_usec();
        for (size_t i = 0; i < N_NODES; i++) {
                nodes[i].claims_at_usec = start + (uint64_t)rand_r(&seed) % SPREAD_USEC;
                first_claim = MIN(first_claim, nodes[i].claims_at_usec);
                last_claim = MAX(last_claim, nodes[i].claims_at_usec);
                (void)timer_rearm(nodes[i].timer, nodes[i].claims_at_usec - start);
        }
        while (count_nodes(is_decided) < N_NODES &&
               clock_boottime_usec() < start + 60 * USEC_PER_SEC)
                run_for(10 * USEC_PER_MSEC);
        size_t n_decided = count_nodes(is_decided);
        run_for(10 * USEC_PER_SEC); /* what is still sent, counts */
        for (size_t i = 0; i < N_NODES; i++) {
                const Decision *d = agreement_find(nodes[i].agreement, KEY, &nodes[i].claim);
                const Decision *first = agreement_find(nodes[0].agreement, KEY, &nodes[0].claim);
                require(d && first && d->n == first->n &&
                                strcmp(d->cluster_id, first->cluster_id) == 0 &&
                                strcmp(d->date_time, first->date_time) == 0,
                        "they do not agree");
                uint64_t from = has_cluster_id ? last_claim : first_claim + SETTLE_USEC;
                waits[i] = nodes[i].decided_usec > from ? nodes[i].decided_usec - from : 0;
                max_sends = i ? MAX(max_sends, (uint64_t)nodes[i].n_sends) : max_sends;
        }
        qsort(waits, N_NODES, sizeof *waits, by_value);
        AgreementFailure failure;
        require(agreement_failure(nodes[0].agreement, 0, &failure), "the centre knows no failure");
        printf("decided: %zu of %d nodes, %zu claims known to the centre\n", n_decided, N_NODES,
               failure.claims->n);
        printf("%s to own decision: p50 %.0f ms, p99 %.0f ms, last %.0f ms\n",
               has_cluster_id ? "last claim" : "first claim and 5 s",
               (double)waits[N_NODES / 2] / 1000, (double)waits[N_NODES * 99 / 100] / 1000,
               (double)waits[N_NODES - 1] / 1000);
        printf("sends of a leaf: at most %llu; of the centre: %u, %.0f KiB to all\n",
               (unsigned long long)max_sends, nodes[0].n_sends,
               (double)(view(&nodes[0]).n_sent_bytes - bytes_before) / 1024);
        return 0;
}

/* ---- flood ---- */

static unsigned n_descriptors(void) {
        _cleanup_closedir_ DIR *d = opendir("/proc/self/fd");
        unsigned n = 0;
        while (readdir(d))
                n++;
        return n;
}

/* @param field  of /proc/PID/status of all children of ours that are a bus; the largest, in kB */
static unsigned long child_memory(const char *field) {
        _cleanup_closedir_ DIR *d = opendir("/proc");
        struct dirent *e;
        unsigned long most = 0;
        while ((e = readdir(d))) {
                char path[300], line[256];
                bool is_bus = false;
                (void)snprintf(path, sizeof path, "/proc/%.200s/cmdline", e->d_name);
                _cleanup_fclose_ FILE *c = atoi(e->d_name) > 0 ? fopen(path, "re") : NULL;
                size_t n = c ? fread(line, 1, sizeof line - 1, c) : 0;
                line[n] = '\0';
                is_bus = n > 16 && memcmp(line + n - 12, "--child=bus", 12) == 0;
                (void)snprintf(path, sizeof path, "/proc/%.200s/status", e->d_name);
                _cleanup_fclose_ FILE *s = is_bus ? fopen(path, "re") : NULL;
                while (s && fgets(line, sizeof line, s))
                        if (strncmp(line, field, strlen(field)) == 0)
                                most = MAX(most, strtoul(line + strlen(field) + 1, NULL, 10));
        }
        return most;
}

/* Connects 5,000 times, with the handshake of nanomsg or none, and keeps what stays open. */
static void be_strangers(void) {
        static const unsigned char hello[] = { 0, 'S', 'P', 0, 0, 0x70, 0, 0 };
        struct sockaddr_in a = { .sin_family = AF_INET,
                                 .sin_port = htons(PORT),
                                 .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
        unsigned n = 0;
        (void)spawn_raise_fd_limit();
        for (unsigned i = 0; i < 5000; i++) {
                int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
                if (fd < 0 || connect(fd, (struct sockaddr *)&a, sizeof a) < 0) {
                        if (fd >= 0)
                                (void)close(fd);
                        continue;
                }
                n++;
                if (i % 4)
                        (void)send(fd, hello, sizeof hello, MSG_NOSIGNAL);
                /* All but the last byte of a message of 16 KiB: what it takes is allocated. */
                static const unsigned char most[8 + 0x3fff] = { 0, 0, 0, 0, 0, 0, 0x40, 0, 1 };
                if (i % 4)
                        (void)send(fd, most, sizeof most, MSG_NOSIGNAL);
        }
        printf("strangers: %u of 5000 could connect\n", n);
        (void)fflush(stdout);
        (void)pause();
}

static void send_garbage(void) {
        int s = nn_socket(AF_SP, NN_BUS);
        char garbage[512] = "garbage";
        require(s >= 0 && nn_connect(s, ADDRESS) >= 0, "cannot connect");
        for (;;)
                (void)nn_send(s, garbage, sizeof garbage, 0);
}

static pid_t run_beside(void (*run)(void)) {
        (void)fflush(stdout);
        pid_t pid = fork();
        require(pid >= 0, "cannot fork");
        if (pid == 0) {
                run();
                _exit(0);
        }
        return pid;
}

static double cpu_seconds(void) {
        struct rusage u;
        (void)getrusage(RUSAGE_SELF, &u);
        return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
               (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

static void report(const char *what, unsigned n_before) {
        BusView v = view(&nodes[0]);
        printf("%s: descriptors %u before, %u now; child VmRSS %lu KiB, VmHWM %lu KiB; state %s, "
               "%zu connected, %llu received, %llu rejected, %llu restarts; %s\n",
               what, n_before, n_descriptors(), child_memory("VmRSS"), child_memory("VmHWM"),
               v.state, v.n_connected, (unsigned long long)v.n_received,
               (unsigned long long)v.n_rejected, (unsigned long long)v.n_restarts,
               v.last_error ? v.last_error : "no error");
        (void)fflush(stdout);
}

static int flood(void) {
        strcpy(nodes[0].id, "i-0");
        start_bus(&nodes[0], true);
        while (view(&nodes[0]).state[0] != 'l')
                run_for(100 * USEC_PER_MSEC);
        unsigned n_before = n_descriptors();
        report("quiet", n_before);

        pid_t garbage = run_beside(send_garbage);
        run_for(2 * USEC_PER_SEC);
        double cpu = cpu_seconds();
        uint64_t received = view(&nodes[0]).n_received;
        run_for(10 * USEC_PER_SEC);
        printf("of the flood it took %llu messages/s, by %.1f %% of a core\n",
               (unsigned long long)(view(&nodes[0]).n_received - received) / 10,
               (cpu_seconds() - cpu) * 10);
        report("one that floods", n_before);
        strcpy(nodes[1].id, "i-1");
        start_bus(&nodes[1], false);
        Message m = { .kind = MESSAGE_NEWS, .key = KEY };
        while (view(&nodes[1]).n_connected == 0)
                run_for(100 * USEC_PER_MSEC);
        uint64_t before = view(&nodes[0]).n_received - view(&nodes[0]).n_rejected;
        for (unsigned i = 0; i < 20; i++) {
                (void)bus_send(nodes[1].bus, &m);
                run_for(50 * USEC_PER_MSEC);
        }
        printf("meanwhile %llu of 20 messages of a peer arrived\n",
               (unsigned long long)(view(&nodes[0]).n_received - view(&nodes[0]).n_rejected -
                                    before));
        nodes[1].bus = bus_free(nodes[1].bus);
        (void)kill(garbage, SIGKILL);
        (void)waitpid(garbage, NULL, 0);

        pid_t strangers = run_beside(be_strangers);
        for (unsigned i = 0; i < 6; i++) {
                run_for(2 * USEC_PER_SEC);
                report("strangers", n_before);
        }
        (void)kill(strangers, SIGKILL);
        (void)waitpid(strangers, NULL, 0);
        run_for(15 * USEC_PER_SEC);
        report("afterwards", n_before);
        return 0;
}

int main(int argc, char **argv) {
        if (argc == 2 && strcmp(argv[1], "--child=bus") == 0)
                _exit(bus_child_main());
        log_setup(LOG_FORMAT_TEXT, LOG_ERR);
        require(sd_event_new(&event) >= 0 && spawn_raise_fd_limit() == 0, "cannot start");
        has_cluster_id = argc != 2 || strcmp(argv[1], "zero") != 0;
        return argc == 2 && strcmp(argv[1], "flood") == 0 ? flood() : star();
}
