/* Core files: both classes, both byte orders, many program headers, and every place where one may
 * end too early. */
#include <elf.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/lib/bundle/test_validate_common.h"

#include "lib/base/cleanup.h"

typedef struct Core { /* a core file under construction */
        bool is_64, is_big;
        uint8_t *bytes;
        size_t n;
} Core;

static void put(Core *c, size_t at, uint64_t value, size_t n) {
        for (size_t i = 0; i < n; i++)
                c->bytes[at + (c->is_big ? n - 1 - i : i)] = (uint8_t)(value >> 8 * i);
}

#define PUT(c, at, type, name, value)                                                              \
        put(c, (at) + ((c)->is_64 ? offsetof(Elf64_##type, name) : offsetof(Elf32_##type, name)),  \
            value,                                                                                 \
            (c)->is_64 ? sizeof(((Elf64_##type *)0)->name) : sizeof(((Elf32_##type *)0)->name))

static size_t ehdr_bytes(const Core *c) {
        return c->is_64 ? sizeof(Elf64_Ehdr) : sizeof(Elf32_Ehdr);
}

static size_t phdr_bytes(const Core *c) {
        return c->is_64 ? sizeof(Elf64_Phdr) : sizeof(Elf32_Phdr);
}

static size_t shdr_bytes(const Core *c) {
        return c->is_64 ? sizeof(Elf64_Shdr) : sizeof(Elf32_Shdr);
}

static void phdr_put(Core *c, size_t i, uint64_t offset, uint64_t bytes) {
        const size_t at = ehdr_bytes(c) + i * phdr_bytes(c);
        PUT(c, at, Phdr, p_type, PT_LOAD);
        PUT(c, at, Phdr, p_offset, offset);
        PUT(c, at, Phdr, p_filesz, bytes);
        PUT(c, at, Phdr, p_memsz, bytes + 4096);
}

/* n program headers of `each` bytes, one behind the other as Linux lays them out; section 0 at the
 * end when there are many. */
static Core core_make(bool is_64, bool is_big, size_t n, size_t each) {
        Core c = { .is_64 = is_64, .is_big = is_big };
        const bool is_many = n >= PN_XNUM;
        const size_t data = ehdr_bytes(&c) + n * phdr_bytes(&c), end = data + n * each;
        c.n = end + (is_many ? shdr_bytes(&c) : 0);
        c.bytes = calloc(1, c.n);
        assert_non_null(c.bytes);

        memcpy(c.bytes, ELFMAG, SELFMAG);
        c.bytes[EI_CLASS] = is_64 ? ELFCLASS64 : ELFCLASS32;
        c.bytes[EI_DATA] = is_big ? ELFDATA2MSB : ELFDATA2LSB;
        c.bytes[EI_VERSION] = EV_CURRENT;
        PUT(&c, 0, Ehdr, e_type, ET_CORE);
        PUT(&c, 0, Ehdr, e_phoff, ehdr_bytes(&c));
        PUT(&c, 0, Ehdr, e_phnum, is_many ? PN_XNUM : n);
        PUT(&c, 0, Ehdr, e_phentsize, phdr_bytes(&c));
        for (size_t i = 0; i < n; i++)
                phdr_put(&c, i, data + i * each, each);
        memset(c.bytes + data, 'd', n * each);
        if (is_many) {
                PUT(&c, 0, Ehdr, e_shoff, end);
                PUT(&c, 0, Ehdr, e_shentsize, shdr_bytes(&c));
                PUT(&c, 0, Ehdr, e_shnum, 1);
                PUT(&c, end, Shdr, sh_info, n);
        }
        return c;
}

static void core_done(Core *c) {
        free(c->bytes);
}

static Verdict core_verdict(const Core *c, size_t n, char detail[256]) {
        return verdict_of(SOURCE_PROCESS_CORE, "core.1", MEMBER_ELF_CORE, c->bytes, n, detail);
}

static void a_complete_core_is_ok_in_either_class_and_byte_order(void **state) {
        char detail[256];
        for (int i = 0; i < 4; i++) {
                _cleanup_(core_done) Core c = core_make(i & 1, i & 2, 3, 5000);
                assert_int_equal(core_verdict(&c, c.n, detail), VERDICT_OK);
                assert_string_equal(detail, "");
        }
}

static void a_core_cut_anywhere_is_truncated_and_reports_how_much_is_missing(void **state) {
        char detail[256];
        for (int i = 0; i < 4; i++) {
                _cleanup_(core_done) Core c = core_make(i & 1, i & 2, 3, 300);
                for (size_t n = 1; n < c.n; n++)
                        assert_int_equal(core_verdict(&c, n, detail), VERDICT_TRUNCATED);
                assert_string_equal(detail, i & 1 ? "1 of 1132 bytes are missing, by its headers"
                                                  : "1 of 1048 bytes are missing, by its headers");
        }
}

static void segments_of_no_bytes_need_none(void **state) {
        char detail[256];
        _cleanup_(core_done) Core c = core_make(true, false, 2, 100);
        phdr_put(&c, 1, UINT64_C(1) << 50, 0);
        assert_int_equal(core_verdict(&c, c.n, detail), VERDICT_OK);
}

static void what_is_elf_but_no_core_is_suspect(void **state) {
        char detail[256];
        _cleanup_(core_done) Core c = core_make(true, false, 2, 100);
        PUT(&c, 0, Ehdr, e_type, ET_DYN);
        assert_int_equal(core_verdict(&c, c.n, detail), VERDICT_SUSPECT);
        assert_string_equal(detail, "ELF type 3 is not that of a core file (4)");
}

static void what_is_no_elf_is_suspect_and_compressed_cores_are_opaque(void **state) {
        char detail[256];
        const char text[64] = "this is a text file, though somebody has called it core.1";
        assert_int_equal(verdict_of(SOURCE_PROCESS_CORE, "core.1", MEMBER_ELF_CORE, text,
                                    sizeof text, detail),
                         VERDICT_SUSPECT);
        assert_string_equal(detail, "does not begin as an ELF file");
        assert_int_equal(
                verdict_of(SOURCE_PROCESS_CORE, "core.1", MEMBER_ELF_CORE, text, 5, detail),
                VERDICT_SUSPECT);
        const uint8_t zstd[64] = { 0x28, 0xb5, 0x2f, 0xfd };
        assert_int_equal(verdict_of(SOURCE_PROCESS_CORE, "core.zst", MEMBER_ELF_CORE, zstd,
                                    sizeof zstd, detail),
                         VERDICT_OPAQUE);
        assert_string_equal(detail, "compressed (zstd), not validated");
}

static void headers_that_make_no_sense_are_suspect(void **state) {
        char detail[256];
        for (int i = 0; i < 7; i++) {
                _cleanup_(core_done) Core c = core_make(true, false, 2, 100);
                switch (i) {
                case 0:
                        c.bytes[EI_CLASS] = 9;
                        break;
                case 1:
                        c.bytes[EI_DATA] = 0;
                        break;
                case 2:
                        PUT(&c, 0, Ehdr, e_phnum, 0);
                        break;
                case 3:
                        PUT(&c, 0, Ehdr, e_phentsize, 32);
                        break;
                case 4:
                        PUT(&c, 0, Ehdr, e_phoff, 8);
                        break;
                case 5:
                        PUT(&c, 0, Ehdr, e_phoff, UINT64_MAX - 8);
                        break;
                default:
                        phdr_put(&c, 1, UINT64_MAX - 8, 100);
                }
                assert_int_equal(core_verdict(&c, c.n, detail), VERDICT_SUSPECT);
                assert_true(strlen(detail) > 10);
        }
}

static void section_headers_beyond_the_end_mean_truncated(void **state) {
        char detail[256];
        _cleanup_(core_done) Core c = core_make(true, false, 2, 100);
        PUT(&c, 0, Ehdr, e_shoff, c.n);
        PUT(&c, 0, Ehdr, e_shnum, 3);
        PUT(&c, 0, Ehdr, e_shentsize, sizeof(Elf64_Shdr));
        assert_int_equal(core_verdict(&c, c.n, detail), VERDICT_TRUNCATED);
        assert_non_null(strstr(detail, "192 of "));
}

/* Cuts of a byte would take long over megabytes: these go in by pages. */
static Verdict big_verdict(const Core *c, size_t n, char detail[256]) {
        Validator *v = NULL;
        char *text = NULL;
        assert_int_equal(validator_new(&v, &(ValidatorOptions){ SOURCE_PROCESS_CORE,
                                                                MEMBER_ELF_CORE, "core", n }),
                         0);
        feed_cut(v, c->bytes, n, 4095, false);
        Verdict verdict = validator_finish(v, &text);
        strcpy(detail, text);
        free(text);
        validator_free(v);
        return verdict;
}

static void a_core_of_over_65534_program_headers_needs_its_section_header(void **state) {
        char detail[256];
        static const size_t counts[] = { 65535, 65536, 70000, 73727, 73728, 80000 };
        for (size_t i = 0; i < ELEMENTSOF(counts); i++)
                for (int k = 0; k < 4; k++) {
                        _cleanup_(core_done) Core c = core_make(k & 1, k & 2, counts[i], 16);
                        assert_int_equal(big_verdict(&c, c.n, detail), VERDICT_OK);
                        assert_string_equal(detail, "");
                        assert_int_equal(big_verdict(&c, c.n - 1, detail), VERDICT_TRUNCATED);
                        assert_int_equal(big_verdict(&c, c.n / 2, detail), VERDICT_TRUNCATED);
                }
}

static void of_many_program_headers_the_first_65535_count(void **state) {
        char detail[256];
        _cleanup_(core_done) Core c = core_make(true, false, 70000, 16);
        phdr_put(&c, 65535, c.n, 10); /* ten bytes beyond */
        assert_int_equal(big_verdict(&c, c.n, detail), VERDICT_OK);
        phdr_put(&c, 65534, c.n, 10);
        assert_int_equal(big_verdict(&c, c.n, detail), VERDICT_TRUNCATED);
        assert_non_null(strstr(detail, "10 of "));
}

static void the_quick_check_reads_64_kib_and_no_more(void **state) {
        _cleanup_(core_done) Core c = core_make(true, false, 3, 50000);
        _cleanup_close_ int fd = memfd_create("core", MFD_CLOEXEC);
        assert_int_equal(write(fd, c.bytes, c.n), c.n);
        assert_int_equal(validate_quick(fd, MEMBER_ELF_CORE, c.n), VERDICT_OK);
        assert_int_equal(validate_quick(fd, MEMBER_ELF_CORE, c.n - 1), VERDICT_TRUNCATED);
        assert_int_equal(validate_quick(fd, MEMBER_ELF_CORE, 20), VERDICT_TRUNCATED);
        assert_int_equal(validate_quick(fd, MEMBER_ELF_CORE, 0), VERDICT_EMPTY);
        c.bytes[0] = 'x';
        assert_int_equal(pwrite(fd, c.bytes, 1, 0), 1);
        assert_int_equal(validate_quick(fd, MEMBER_ELF_CORE, 20), VERDICT_OK);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(a_complete_core_is_ok_in_either_class_and_byte_order),
                cmocka_unit_test(a_core_cut_anywhere_is_truncated_and_reports_how_much_is_missing),
                cmocka_unit_test(segments_of_no_bytes_need_none),
                cmocka_unit_test(what_is_elf_but_no_core_is_suspect),
                cmocka_unit_test(what_is_no_elf_is_suspect_and_compressed_cores_are_opaque),
                cmocka_unit_test(headers_that_make_no_sense_are_suspect),
                cmocka_unit_test(section_headers_beyond_the_end_mean_truncated),
                cmocka_unit_test(a_core_of_over_65534_program_headers_needs_its_section_header),
                cmocka_unit_test(of_many_program_headers_the_first_65535_count),
                cmocka_unit_test(the_quick_check_reads_64_kib_and_no_more),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
