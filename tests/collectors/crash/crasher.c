/* A program that crashes as it is told: crasher HOW [THREADS]. Its threads wait at different depths
 * of a recursion, so that each chain of calls has a known length. Built with its own frames: no
 * inlining, no sibling calls. */
#include <assert.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifdef __clang__
#define noinline_ __attribute__((noinline))
#define guarded_
#else
#define guarded_ __attribute__((optimize("stack-protector-all")))
#define noinline_ __attribute__((noinline, noclone))
#endif
/* What follows a call keeps it from becoming a jump. */
#define KEEP_FRAME() __asm__ volatile("" ::: "memory")

enum { DEPTHS = 30, MANY = 50, BIG_BYTES = 16 << 20 };

static sem_t ready;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

noinline_ static void wait_deep(int n) {
        if (n > 0)
                wait_deep(n - 1);
        else
                for (sem_post(&ready);;)
                        pause();
        KEEP_FRAME();
}

static void *wait_in_thread(void *depth) {
        wait_deep((int)(intptr_t)depth);
        KEEP_FRAME();
        return NULL;
}

static void start_threads_of(int n, void *(*run)(void *), size_t stack_bytes) {
        pthread_attr_t a;
        pthread_attr_init(&a);
        pthread_attr_setstacksize(&a, stack_bytes);
        for (intptr_t i = 0; i < n; i++) {
                pthread_t t;
                if (pthread_create(&t, &a, run, (void *)(i % DEPTHS)) != 0)
                        exit(2);
        }
        for (int i = 0; i < n; i++)
                sem_wait(&ready);
        usleep(50000); /* they are in pause() */
}

static void start_threads(int n, void *(*run)(void *)) {
        start_threads_of(n, run, 256 << 10);
}

noinline_ static int read_through(volatile int *p) {
        int v = p[4];
        KEEP_FRAME();
        return v;
}

/* As a compiler of C++ names model::load(int volatile*). Not the code of read_through(), with which
 * a compiler may make it one. */
int read_as_model(volatile int *p) __asm__("_ZN5model4loadEPVi");
noinline_ int read_as_model(volatile int *p) {
        int v = p[5];
        KEEP_FRAME();
        return v;
}

guarded_ noinline_ static void overrun(volatile int n) {
        volatile char frame[16];
        for (int i = 0; i < n; i++)
                frame[i] = 'A';
        KEEP_FRAME();
}

noinline_ static void overrun_unguarded(volatile int n) {
        volatile char frame[16];
        for (int i = 0; i < n; i++)
                frame[i] = 'A';
        KEEP_FRAME();
}

noinline_ static void write_through(volatile int *p) {
        *p = 1;
        KEEP_FRAME();
}

static void on_signal(int number) {
        signal(number, SIG_DFL);
        raise(number);
}

static void set_handler_of(int number, void (*handler)(int), int flags) {
        struct sigaction a = { .sa_handler = handler, .sa_flags = flags };
        sigaction(number, &a, NULL);
}

static void set_handler(void (*handler)(int), int flags) {
        set_handler_of(SIGSEGV, handler, flags);
}

static void *lock_in_thread(void *unused) {
        (void)unused;
        sem_post(&ready);
        pthread_mutex_lock(&mutex);
        return NULL;
}

__attribute__((always_inline)) static inline int read_inlined(volatile int *p) {
        return *p + 1;
}

__attribute__((always_inline)) static inline int inline_it(volatile int *p) {
        volatile int before = 1;
        return before + read_inlined(p);
}

noinline_ static int call_inlined(volatile int *p) {
        volatile int v = 2 * inline_it(p);
        KEEP_FRAME();
        return v;
}

noinline_ static int recurse(int n) {
        volatile char frame[1024];
        frame[0] = (char)n;
        int v = recurse(n + 1) + frame[0];
        KEEP_FRAME();
        return v;
}

noinline_ static int use_much_stack(void) {
        volatile char big[BIG_BYTES];
        big[0] = 1;
        KEEP_FRAME();
        return big[0];
}

static void on_other_signal(int number) {
        (void)number;
        abort();
}

static void on_other_signal_crash(int number) {
        (void)number;
        write_through((int *)0x7000dead0000);
}

/* The stack is used up, and the handler has one of its own. */
noinline_ static void recurse_under_handler(void) {
        static char space[64 << 10];
        stack_t s = { .ss_sp = space, .ss_size = sizeof space };
        sigaltstack(&s, NULL);
        set_handler(on_signal, SA_NODEFER | SA_ONSTACK);
        recurse(0);
}

/* Where sp points there is memory, which is no stack. */
noinline_ static void use_bad_stack(void) {
        char *p = mmap(NULL, 3 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        munmap(p, 4096);
        munmap(p + 8192, 4096);
#ifdef __x86_64__
        __asm__ volatile("mov %0, %%rsp\n\tpush %%rax" ::"r"(p + 4096) : "memory");
#endif
        KEEP_FRAME();
}

/* An address in the stack's segment: the kernel sends SIGBUS, without an address. */
noinline_ static void read_by_frame(void) {
#ifdef __x86_64__
        __asm__ volatile("mov %0, %%rbp\n\tmov 8(%%rbp), %%eax" ::"r"(0x7ff8123456789ab0) : "rax");
#endif
        KEEP_FRAME();
}

noinline_ static void read_misaligned(void) {
#ifdef __x86_64__
        static char space[64] __attribute__((aligned(16)));
        __asm__ volatile("movaps 1(%0), %%xmm0" ::"r"(space) : "xmm0");
#endif
        KEEP_FRAME();
}

noinline_ static void run_illegal(void) {
#ifdef __x86_64__
        __asm__ volatile(".byte 0x06");
#endif
        KEEP_FRAME();
}

/* Not where it is called: a compiler moves a branch that ends so out of its function. */
noinline_ static void run_trap(void) {
        __builtin_trap();
}

noinline_ static void run_breakpoint(void) {
#ifdef __x86_64__
        __asm__ volatile("int3");
#endif
        KEEP_FRAME();
}

/* Assembly without a size, of which the crash is far behind. */
#ifdef __x86_64__
__asm__(".pushsection .text.unsized,\"ax\"\n"
        "unsized: .skip 8192, 0x90\n"
        "ud2\n"
        ".popsection");
void unsized(void);
#else
static void unsized(void) {
}
#endif

noinline_ static void lose_return_address(void) {
        void **frame = __builtin_frame_address(0);
        frame[1] = NULL;
        write_through((int *)0x7000dead0000);
        KEEP_FRAME();
}

/* Data with a secret in it is executed, and a register points at it. */
noinline_ static void run_data(void) {
        char *p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        static const char *volatile secret = "correct-horse-battery-staple";
        for (volatile int i = 0; secret[i]; i++)
                p[i] = secret[i];
        ((void (*)(void *))p)(p);
        KEEP_FRAME();
}

static void *kill_in_thread(void *unused) {
        (void)unused;
        sem_post(&ready);
        usleep(100000);
        kill(getpid(), SIGSEGV);
        for (;;)
                pause();
}

/* Another thread's signal comes while no handler is there and no fault was. */
noinline_ static void spin(void) {
        static volatile int *volatile p;
        static volatile int v;
        p = &v;
        start_threads(1, kill_in_thread);
        for (;;)
                (void)*p;
}

noinline_ static void wait_for_signal_of_child(int number) {
        pid_t parent = getpid();
        (void)signal(number, SIG_DFL);
        if (fork() == 0) {
                usleep(200000);
                kill(parent, number);
                _exit(0);
        }
        for (;;)
                pause();
}

static void *hold_in_thread(void *unused) {
        (void)unused;
        pthread_mutex_lock(&mutex);
        for (sem_post(&ready);;)
                pause();
}

static void *idle_in_thread(void *unused) {
        static pthread_cond_t never = PTHREAD_COND_INITIALIZER;
        (void)unused;
        pthread_mutex_lock(&mutex);
        sem_post(&ready);
        for (;;)
                pthread_cond_wait(&never, &mutex);
}

noinline_ static void fail_at_length(void) {
        static char text[20000];
        memset(text, 'x', sizeof text - 1);
        memcpy(text, "password=hunter22 ", 18);
        __assert_fail(text, "file", 1, "function");
}

noinline_ static void use_library(void) {
        void *library = dlopen(getenv("CRASHER_LIBRARY"), RTLD_NOW);
        if (library)
                dlclose(library);
        KEEP_FRAME();
}

noinline_ static void wait_wide(int n) {
        volatile char page[4096];
        page[0] = (char)n;
        if (n > 0)
                wait_wide(n - 1);
        else
                for (sem_post(&ready);;)
                        pause();
        KEEP_FRAME();
}

static void *wait_wide_in_thread(void *unused) {
        (void)unused;
        wait_wide(230);
        KEEP_FRAME();
        return NULL;
}

static void at_exit(void) {
        (void)read_through((int *)0x7000dead0000);
}

typedef struct Object {
        uint64_t space[4];
        int *data;
        uint64_t more[400]; /* not among the small ones, which are not filled */
} Object;

static int *volatile shared;

static void unmap_at_exit(void) {
        munmap(shared, 4096);
        for (;;)
                pause(); /* what comes next in its destructors */
}

static void *use_in_thread(void *unused) {
        (void)unused;
        for (sem_post(&ready);;)
                (void)read_through(shared);
}

/* A thread continues what another one destroys while it exits. */
noinline_ static void exit_under_thread(void) {
        shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        start_threads(1, use_in_thread);
        atexit(unmap_at_exit);
        exit(0);
}

/* With MALLOC_PERTURB_ freed memory is filled with one byte. */
noinline_ static void use_after_free(void) {
        Object *o = calloc(1, sizeof *o);
        Object *volatile kept = o;
        void *volatile behind = malloc(64);
        free(o);
        (void)behind;
        (void)read_through(kept->data);
}

noinline_ static void read_cut_file(void) {
        char name[] = "/tmp/crasher-XXXXXX";
        int fd = mkstemp(name);
        unlink(name);
        if (fd < 0 || ftruncate(fd, 8192) < 0)
                exit(2);
        int *p = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (ftruncate(fd, 0) < 0)
                exit(2);
        (void)read_through(p + 1024);
}

noinline_ static void divide(volatile int by) {
        volatile int v = 1000;
        v = v / by;
}

noinline_ static void call_null(void) {
        void (*volatile f)(void) = NULL;
        f();
        KEEP_FRAME();
}

/* Through a register: the call itself is what fails. */
noinline_ static void call_wild(void (*volatile f)(void)) {
        void (*to)(void) = f;
        __asm__("" : "+r"(to));
        to();
        KEEP_FRAME();
}

noinline_ static void double_free(void) {
        void *volatile p = malloc(2000), *volatile q = malloc(2000);
        free(p);
        free(p);
        free(q);
}

noinline_ static void check_assertion(volatile int v) {
        assert(v == 1);
        KEEP_FRAME();
}

noinline_ static void check_words(volatile int v) {
        assert(v == 1 && "free(): malloc() found it corrupt");
        KEEP_FRAME();
}

/* 64 GiB, of which 2 GiB have data, here and there. */
noinline_ static void fill(void) {
        size_t n = (size_t)64 << 30, step = n / 256, n_data = (size_t)8 << 20;
        char *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                       -1, 0);
        for (size_t i = 0; p != MAP_FAILED && i < n; i += step)
                memset(p + i, 0x55, n_data);
        (void)read_through(NULL);
        KEEP_FRAME();
}

noinline_ static void crash_otherwise(const char *how) {
        if (strcmp(how, "text-pointer") == 0)
                (void)read_through((int *)0x4141414141414141);
        else if (strcmp(how, "non-canonical-frame") == 0)
                read_by_frame();
        else if (strcmp(how, "misaligned") == 0)
                read_misaligned();
        else if (strcmp(how, "illegal-bytes") == 0)
                run_illegal();
        else if (strcmp(how, "breakpoint") == 0)
                run_breakpoint();
        else if (strcmp(how, "unsized") == 0)
                unsized();
        else if (strcmp(how, "no-return") == 0)
                lose_return_address();
        else if (strcmp(how, "bad-stack") == 0)
                use_bad_stack();
        else if (strcmp(how, "run-data") == 0)
                run_data();
        else if (strcmp(how, "assertion-words") == 0)
                check_words(0);
        else if (strcmp(how, "assertion-long") == 0)
                fail_at_length();
        else if (strcmp(how, "dlclose") == 0)
                use_library();
        else if (strcmp(how, "sent") == 0)
                wait_for_signal_of_child(SIGSEGV);
        else if (strcmp(how, "lock-sent") == 0)
                start_threads(1, hold_in_thread), start_threads(MANY, lock_in_thread),
                        wait_for_signal_of_child(SIGQUIT);
        else if (strcmp(how, "sent-by-thread") == 0)
                spin();
        else if (strcmp(how, "other-handler-abort") == 0)
                set_handler_of(SIGUSR1, on_other_signal, 0), raise(SIGUSR1);
        else if (strcmp(how, "handler-in-other") == 0)
                set_handler(on_signal, SA_NODEFER),
                        set_handler_of(SIGUSR1, on_other_signal_crash, 0), raise(SIGUSR1);
        else if (strcmp(how, "handler-info") == 0)
                set_handler(on_signal, SA_NODEFER | SA_SIGINFO), (void)read_through(NULL);
        else if (strcmp(how, "handler-bus") == 0)
                set_handler_of(SIGBUS, on_signal, SA_NODEFER), read_cut_file();
        else if (strcmp(how, "handler-recursion") == 0)
                recurse_under_handler();
        else if (strcmp(how, "wide-stacks") == 0)
                start_threads_of(90, wait_wide_in_thread, 2 << 20), (void)read_through(NULL);
        KEEP_FRAME();
}

noinline_ static void crash(const char *how) {
        if (strcmp(how, "null") == 0)
                (void)read_through(NULL);
        else if (strcmp(how, "smashed") == 0)
                overrun(64);
        else if (strcmp(how, "smashed-return") == 0)
                overrun_unguarded(64);
        else if (strcmp(how, "call-wild") == 0)
                call_wild((void (*)(void))0x7ff8123456789ab0);
        else if (strcmp(how, "mangled") == 0)
                (void)read_as_model(NULL);
        else if (strcmp(how, "non-canonical") == 0)
                (void)read_through((int *)0x7ff8123456789ab0);
        else if (strcmp(how, "use-after-free") == 0)
                use_after_free();
        else if (strcmp(how, "recursion") == 0)
                recurse(0);
        else if (strcmp(how, "stack") == 0)
                use_much_stack();
        else if (strcmp(how, "exit") == 0)
                atexit(at_exit), exit(0);
        else if (strcmp(how, "exit-other") == 0)
                exit_under_thread();
        else if (strcmp(how, "wild-lock") == 0)
                pthread_mutex_lock(&mutex), start_threads(MANY, lock_in_thread),
                        write_through((int *)0x7000dead0000);
        else if (strcmp(how, "double-free") == 0)
                double_free();
        else if (strcmp(how, "assertion") == 0)
                check_assertion(0);
        else if (strcmp(how, "inlined") == 0)
                call_inlined((int *)0x7000dead0000);
        else if (strcmp(how, "bus") == 0)
                read_cut_file();
        else if (strcmp(how, "handler") == 0)
                set_handler(on_signal, SA_NODEFER), read_through(NULL);
        else if (strcmp(how, "handler-blocked") == 0)
                set_handler(on_signal, 0), read_through(NULL);
        else if (strcmp(how, "handler-wild") == 0)
                set_handler(on_signal, SA_NODEFER), write_through((int *)0x7000dead0000);
        else if (strcmp(how, "call-null") == 0)
                call_null();
        else if (strcmp(how, "divide") == 0)
                divide(0);
        else if (strcmp(how, "illegal") == 0)
                run_trap();
        else if (strcmp(how, "lock") == 0)
                start_threads(1, hold_in_thread), start_threads(MANY, lock_in_thread), abort();
        else if (strcmp(how, "own-lock") == 0)
                pthread_mutex_lock(&mutex), start_threads(MANY, lock_in_thread), abort();
        else if (strcmp(how, "idle-pool") == 0)
                start_threads(MANY, idle_in_thread), abort();
        else if (strcmp(how, "abort") == 0)
                abort();
        else if (strcmp(how, "wild") == 0)
                write_through((int *)0x7000dead0000);
        else if (strcmp(how, "read-only") == 0)
                write_through((int *)(uintptr_t) "text");
        else if (strcmp(how, "killed") == 0)
                kill(getpid(), SIGSEGV);
        else if (strcmp(how, "quit") == 0) {
                (void)signal(SIGQUIT, SIG_DFL); /* ignored in a shell's background */
                raise(SIGQUIT);
        } else if (strcmp(how, "fill") == 0)
                fill();
        else
                crash_otherwise(how);
        KEEP_FRAME();
}

int main(int argc, char **argv) {
        if (argc < 2)
                return 2;
        sem_init(&ready, 0, 0);
        start_threads(argc > 2 ? atoi(argv[2]) : 0, wait_in_thread);
        crash(argv[1]);
        KEEP_FRAME();
        return 3;
}
