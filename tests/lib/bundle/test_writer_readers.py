#!/usr/bin/env python3
"""Other people's readers on what plan and writer make: zstd, GNU tar, bsdtar, Python's tarfile, and
the digest of docs/BUNDLE.md. TAP on stdout. Runs make_bundle from $builddir."""
import os
import random
import re
import shutil
import struct
import subprocess
import sys
import tarfile
import tempfile

SRCDIR = os.environ.get('srcdir', '.')
MAKE_BUNDLE = os.path.join(os.environ.get('builddir', '.'), 'tests/lib/bundle/make_bundle')
MIB = 1 << 20
GIB = 1 << 30
FRAME = 2 * MIB

with open(os.path.join(SRCDIR, 'docs/BUNDLE.md')) as document:
    exec(re.search(r'```python\n(.*?)```', document.read(), re.S).group(1))  # member_digest()


class Skip(Exception):
    pass


def need(tool):
    if not shutil.which(tool):
        raise Skip(tool + ' is not installed')


def run(*argv, **options):
    return subprocess.run(argv, check=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          **options).stdout


def put(root, path, pieces=(), size=None):
    path = os.path.join(root, path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, 'wb') as f:
        for offset, data in pieces:
            f.seek(offset)
            f.write(data)
        if size is not None:
            f.truncate(size)
    return path


def make_tree(root):
    """Everything that has ever been hard for a tar writer, in a few MiB."""
    noise = random.Random(1)
    put(root, b'empty')
    os.utime(put(root, b'whole-second', [(0, b'x')]), ns=(0, 1700000000 * 10 ** 9))
    os.utime(put(root, b'nanoseconds', [(0, b'x')]), ns=(0, 1700000000123456789))
    os.utime(put(root, b'before-1970', [(0, b'x')]), ns=(0, -5 * 10 ** 9))
    os.utime(put(root, b'far-future', [(0, b'x')]), ns=(0, 9000000000 * 10 ** 9 + 5))
    os.chmod(put(root, b'mode', [(0, b'x')]), 0o4751)
    for n in (1, 511, 512, 513, 1024):
        put(root, b'edge-%d' % n, [(0, noise.randbytes(n))])
    for n in (-1536, -1024, -512, -1, 0, 1):
        put(root, b'frame%+d' % n, [(0, noise.randbytes(FRAME + n))])
    put(root, b'bad\xff\xfename', [(0, b'raw')])
    put(root, b'd\xc3\xa9j\xc3\xa0', [(0, b'utf-8')])
    put(root, b'new\nline', [(0, b'newline')])
    put(root, b'back\\slash', [(0, b'backslash')])
    put(root, b'trailing ', [(0, b'blank')])
    put(root, b'-dash', [(0, b'dash')])
    put(root, b'n' * 255, [(0, b'long name')])
    put(root, b'raw/' + b'\xff' * 255, [(0, b'long raw name')])
    deep = b'/'.join(b'%02d-' % i + b'd' * 90 for i in range(14))
    put(root, deep + b'/leaf', [(0, b'deep')])
    put(root, b'zeros', [(0, bytes(9 * MIB))])
    put(root, b'text', [(0, b'the quick brown fox\n' * 300000)])
    put(root, b'noise', [(0, noise.randbytes(5 * MIB + 333))])
    for i in range(200):
        put(root, b'many/%d/f%04d' % (i % 7, i), [(0, noise.randbytes(i * 11))])
    put(root, b'sparse/middle', [(MIB, noise.randbytes(70000)),
                                 (5 * MIB + 123, noise.randbytes(99999))], 9 * MIB + 17)
    put(root, b'sparse/raw-\xff', [(MIB, b'q' * 5000)], 3 * MIB)
    put(root, b'sparse/utf8-\xc3\xa9', [(MIB, b'q' * 5000)], 3 * MIB)
    put(root, b'sparse/' + b'l' * 250, [(MIB, b'q' * 5000)], 3 * MIB)
    put(root, b'sparse/first', [(0, b'begin')], 4 * MIB)
    put(root, b'sparse/last', [(4 * MIB, b'end')])
    put(root, b'sparse/all', [], 3 * MIB)
    put(root, b'sparse/all-odd', [], 3 * MIB + 1)
    put(root, b'sparse/small-hole', [], 65535)
    put(root, b'sparse/many', [(i * 131072, b'%08d' % i) for i in range(3000)], 3000 * 131072)
    # beyond what a ustar header can say
    put(root, b'sparse/huge', [(0, b'head'), (9 * GIB, b'tail')], 9 * GIB + 100)


def files_below(root):
    return sorted(os.path.relpath(os.path.join(d, f), root) for d, _,
                  names in os.walk(root) for f in names)


def data_ranges(f, size):
    end = 0
    while end < size:
        try:
            begin = os.lseek(f.fileno(), end, os.SEEK_DATA)
        except OSError:  # ENXIO: no more data
            return
        end = os.lseek(f.fileno(), begin, os.SEEK_HOLE)
        yield begin, end


def assert_same_file(one, other):
    """Compares all that is data in either; holes of both are equal anyway."""
    with open(one, 'rb') as a, open(other, 'rb') as b:
        size = os.fstat(a.fileno()).st_size
        assert size == os.fstat(b.fileno()).st_size, (other, size, os.fstat(b.fileno()).st_size)
        for begin, end in list(data_ranges(a, size)) + list(data_ranges(b, size)):
            while begin < end:
                n = min(MIB, end - begin)
                assert os.pread(a.fileno(), n, begin) == os.pread(b.fileno(), n,
                                                                  begin), (other, begin)
                begin += n


def assert_same_tree(one, other):
    assert files_below(one) == files_below(other)
    for path in files_below(one):
        a, b = os.path.join(one, path), os.path.join(other, path)
        assert_same_file(a, b)
        sa, sb = os.lstat(a), os.lstat(b)
        assert (sa.st_mode, sa.st_uid, sa.st_gid) == (sb.st_mode, sb.st_uid, sb.st_gid), path
        # holes are holes again
        assert sb.st_blocks <= sa.st_blocks + 256, (path, sa.st_blocks, sb.st_blocks)


def assert_same_times(one, other):
    for path in files_below(one):
        a, b = os.lstat(os.path.join(one, path)), os.lstat(os.path.join(other, path))
        assert a.st_mtime_ns == b.st_mtime_ns, (path, a.st_mtime_ns, b.st_mtime_ns)


class Bundle:
    """A tree, its bundle, and what make_bundle said of the members."""

    def __init__(self, work, tree, *options):
        self.tree, self.path = tree, os.path.join(
            work, b'bundle' + b''.join(os.fsencode(o) for o in options) + b'.tar.zst')
        self.lines = run(MAKE_BUNDLE, *options, tree, self.path).decode().splitlines()

    def bytes(self):
        with open(self.path, 'rb') as f:
            return f.read()

    def frames(self):
        """(offset, bytes, uncompressed bytes) of each by the seek table."""
        data = self.bytes()
        n, descriptor, magic = struct.unpack('<IBI', data[-9:])
        assert magic == 0x8F92EAB1 and descriptor == 0
        assert struct.unpack('<II', data[-17 - 8 * n:][:8]) == (0x184D2A5E, 8 * n + 9)
        table, offset = struct.iter_unpack('<II', data[-9 - 8 * n:-9]), 0
        for packed, unpacked in table:
            yield offset, packed, unpacked
            offset += packed
        assert offset == len(data) - 17 - 8 * n

    def tar(self):
        path = self.path[:-4]
        if not os.path.exists(path):
            with open(path, 'wb') as f:
                subprocess.run(['zstd', '-dqc', self.path], stdout=f, check=True)
        return path


def zstd_accepts_every_level(work, tree):
    need('zstd')
    for level in '0', '1', '3', '6', '19':
        bundle = Bundle(work, tree, '-l', level)
        run('zstd', '-qt', bundle.path)
        assert b'XXH64' in run('zstd', '-lv', bundle.path)


def zstd_at_every_level_gives_the_same_tar(work, tree):
    need('zstd')
    tars = {run('sha256sum', Bundle(work, tree, '-l', level).tar()).split()[0]
            for level in ('0', '1', '6')}
    assert len(tars) == 1, tars


def gnu_tar_extracts_the_same(work, tree):
    need('zstd')
    out = os.path.join(work, b'gnu')
    os.mkdir(out)
    run('tar', '--zstd', '-xpf', Bundle(work, tree).path, '-C', out)
    assert_same_tree(tree, out)
    assert_same_times(tree, out)


def gnu_tar_extracts_the_same_in_the_c_locale_and_in_utf8(work, tree):
    need('zstd')
    bundle = Bundle(work, tree)
    for locale in 'C', 'C.UTF-8':
        out = os.path.join(work, b'gnu-' + locale.encode())
        os.mkdir(out)
        run('tar', '--zstd', '-xpf', bundle.path, '-C', out, env={**os.environ, 'LC_ALL': locale})
        assert files_below(tree) == files_below(out)


def gnu_tar_complains_of_nothing_but_names_that_are_not_ascii(work, tree):
    need('zstd')
    r = subprocess.run(['tar', '--zstd', '-tf', Bundle(work, tree).path], stderr=subprocess.PIPE,
                       stdout=subprocess.DEVNULL, env={**os.environ, 'LC_ALL': 'C.UTF-8'})
    assert r.returncode == 0
    lines = r.stderr.decode().splitlines()
    assert all("'hdrcharset'" in line for line in lines), lines
    assert len(lines) == 5, lines  # as many as there are such names


def bsdtar_extracts_the_same(work, tree):
    need('bsdtar')
    bundle = Bundle(work, tree)
    for locale in 'C', 'C.UTF-8':
        out = os.path.join(work, b'bsd-' + locale.encode())
        os.mkdir(out)
        run('bsdtar', '-xpf', bundle.path, '-C', out, env={**os.environ, 'LC_ALL': locale})
        assert_same_tree(tree, out)
        assert_same_times(tree, out)


def python_extracts_the_same(work, tree):
    need('zstd')
    out = os.path.join(work, b'python')
    os.mkdir(out)
    with tarfile.open(os.fsdecode(Bundle(work, tree).tar())) as tar:
        tar.errorlevel = 2
        if hasattr(tarfile, 'fully_trusted_filter'):
            tar.extraction_filter = staticmethod(tarfile.fully_trusted_filter)
        tar.extractall(os.fsdecode(out))
    assert_same_tree(tree, out)


def members_hold_digests_as_documented(work, tree):
    big = os.path.join(work, b'big')
    data = random.Random(2)
    # exactly the limit of zero blocks
    put(big, b'a-plain', [(i * MIB, b'some') for i in range(20)], 512 * MIB + 20 * 65536)
    put(big, b'b-one-block-more', [(i * MIB, b'some') for i in range(20)], 512 * MIB + 21 * 65536)
    put(big, b'c-dense-zeros', [(0, bytes(600 * MIB)), (600 * MIB, b'end')])
    put(big, b'd-runs', [(540 * MIB, b'x'), (560 * MIB + 65535, b'y'),
                         (570 * MIB, data.randbytes(200000))], 600 * MIB + 5)
    for line in Bundle(work, tree).lines + Bundle(work, big).lines:
        sha, form, size, frame, offset, path = line.split(' ', 5)
        path = re.sub(rb'\\x(..)', lambda m: bytes([int(m[1], 16)]), path[:-1].encode())
        if path == b'sparse/huge':
            continue  # 9 GiB of reading in Python
        where = os.path.join(big if os.path.exists(os.path.join(big, path)) else tree, path)
        with open(where, 'rb') as f:
            name, value = member_digest(f)
        assert (value, name == 'sha256_sparse') == (sha, form == 's'), line
        assert form == ('s' if path[:2] in (b'b-', b'c-', b'd-') and where.startswith(big)
                        else '-'), line


def each_frame_stands_alone_and_holds_its_part_of_the_tar(work, tree):
    need('zstd')
    bundle = Bundle(work, tree)
    data, at = bundle.bytes(), 0
    with open(bundle.tar(), 'rb') as tar:
        for offset, packed, unpacked in bundle.frames():
            piece = run('zstd', '-dqc', input=data[offset:offset + packed])
            assert piece == tar.read(unpacked), offset
            at += unpacked
        assert tar.read(1) == b''


def a_member_is_found_by_its_frame_and_offset(work, tree):
    need('zstd')
    bundle = Bundle(work, tree)
    begins, at = [], 0
    for _, _, unpacked in bundle.frames():
        begins.append(at)
        at += unpacked
    with tarfile.open(os.fsdecode(bundle.tar())) as tar:
        offsets = [m.offset for m in tar]
    assert len(offsets) == len(bundle.lines)
    for line, offset in zip(bundle.lines, offsets):
        _, _, _, frame, stated, _ = line.split(' ', 5)
        assert int(stated) == offset, line
        assert begins[int(frame)] <= offset, line
        assert int(frame) + 1 == len(begins) or offset < begins[int(frame) + 1], line


def threads_and_memory_change_nothing(work, tree):
    whole = Bundle(work, tree).bytes()
    for options in ('-j', '1'), ('-j', '5'), ('-j', '4', '-m', '10'), ('-j', '1', '-m', '200'):
        assert Bundle(work, tree, *options).bytes() == whole, options


def the_tail_from_a_later_frame_is_the_same(work, tree):
    bundle = Bundle(work, tree)
    frames, whole = list(bundle.frames()), bundle.bytes()
    end = frames[-1][0] + frames[-1][1]
    for k in 1, len(frames) // 2, len(frames) - 1:  # test_writer.c tries every one
        assert Bundle(work, tree, '-f', str(k)).bytes() == whole[frames[k][0]:end], k


def cached_bytes(path):
    return int(run('fincore', '-b', '-n', '-o', 'RES', path))


def only_what_was_cached_before_stays_in_the_page_cache(work, tree):
    """C2: none of a file, all of it, its middle, and every second MiB; a small file, too."""
    need('fincore')
    if run('stat', '-f', '-c', '%T', work).strip() in (b'tmpfs', b'ramfs', b'overlayfs'):
        raise Skip('the temporary directory is not on a disk')
    big = os.path.join(work, b'big')
    size = 50 * MIB + 12345
    path = put(big, b'file', [(0, random.Random(3).randbytes(size))])
    small = put(big, b'small', [(0, random.Random(4).randbytes(100000))])
    os.sync()  # dirty pages are the kernel's: they cannot be dropped
    for cached in ([], [(0, size)], [(21 * MIB, 7 * MIB)],
                   [(at, MIB) for at in range(0, size, 2 * MIB)]):
        for name in path, small:
            with open(name, 'rb') as f:
                os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        with open(path, 'rb') as f:
            os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_RANDOM)  # nothing is read ahead
            for offset, n in cached:
                os.pread(f.fileno(), n, offset)
        before = cached_bytes(path)
        run(MAKE_BUNDLE, big, os.path.join(work, b'bundle.tar.zst'))
        after = cached_bytes(path)
        # others may reclaim some
        assert before - MIB < after <= before, (cached[:2], before, after)
        assert cached_bytes(small) == 0, cached_bytes(small)


def ten_thousand_small_files_come_back(work, tree):
    need('zstd')
    many, out = os.path.join(work, b'many'), os.path.join(work, b'many-out')
    for i in range(10000):
        put(many, b'%02d/%05d' % (i // 100, i), [(0, b'%d\n' % i * (i % 50))])
    bundle = Bundle(work, many)
    os.mkdir(out)
    run('tar', '--zstd', '-xpf', bundle.path, '-C', out)
    assert_same_tree(many, out)
    assert len(list(bundle.frames())) <= 12


def main():
    tests = [zstd_accepts_every_level, zstd_at_every_level_gives_the_same_tar,
             gnu_tar_extracts_the_same, gnu_tar_extracts_the_same_in_the_c_locale_and_in_utf8,
             gnu_tar_complains_of_nothing_but_names_that_are_not_ascii, bsdtar_extracts_the_same,
             python_extracts_the_same, members_hold_digests_as_documented,
             each_frame_stands_alone_and_holds_its_part_of_the_tar,
             a_member_is_found_by_its_frame_and_offset, threads_and_memory_change_nothing,
             the_tail_from_a_later_frame_is_the_same,
             only_what_was_cached_before_stays_in_the_page_cache,
             ten_thousand_small_files_come_back]
    print('1..%d' % len(tests))
    failed = 0
    with tempfile.TemporaryDirectory(prefix='test_writer_readers.') as root:
        root = os.fsencode(root)
        tree = os.path.join(root, b'tree')
        make_tree(tree)
        for i, test in enumerate(tests, 1):
            work = os.path.join(root, b'%d' % i)
            os.mkdir(work)
            try:
                test(work, tree)
                print('ok %d - %s' % (i, test.__name__), flush=True)
            except Skip as why:
                print('ok %d - %s # SKIP %s' % (i, test.__name__, why), flush=True)
            except Exception as e:  # whatever it is: the test has failed
                failed += 1
                said = getattr(e, 'stderr', None)
                print('not ok %d - %s' % (i, test.__name__))
                print('# %s: %s%s' % (type(e).__name__, str(e)[:400].replace('\n', ' '),
                                      ' ' + said.decode(errors='replace')[-400:].replace('\n', ' ')
                                      if said else ''), flush=True)
            shutil.rmtree(work)
    return failed > 0


if __name__ == '__main__':
    sys.exit(main())
