package writer

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/internal/expect"
	"github.com/refvol/refvol/internal/must"
	"github.com/refvol/refvol/internal/sandbox"
	"github.com/refvol/refvol/pkg/volume"
)

func ref(name string) volume.Ref {
	return volume.Ref{Kind: volume.Secret, Namespace: "platform", Name: name}
}

func refs(names ...string) (all []volume.Ref) {
	for _, name := range names {
		all = append(all, ref(name))
	}
	return all
}

func refSet(names ...string) map[volume.Ref]bool {
	set := map[volume.Ref]bool{}
	for _, name := range names {
		set[ref(name)] = true
	}
	return set
}

func naming(f volume.File, names ...string) volume.File {
	f.Refs = refs(names...)
	return f
}

// withAttributes returns options with attributes that this process may set.
func withAttributes(t testing.TB) Options {
	t.Helper()
	dir := sandbox.TempDir(t)
	for _, prefix := range []string{"trusted.refvol.", "user.refvol."} {
		if err := unix.Setxattr(dir, prefix+"try", []byte("1"), 0); err == nil {
			return Options{AttributePrefix: prefix}
		}
	}
	t.Skip("needs root, or attributes of other users on tmpfs (Linux 6.6)")
	return Options{}
}

// withLargeAttributes is withAttributes on a file system that takes attributes of MaxRecord bytes.
func withLargeAttributes(t testing.TB) Options {
	t.Helper()
	o := withAttributes(t)
	if err := unix.Setxattr(sandbox.TempDir(t), o.AttributePrefix+"try", make([]byte, MaxRecord), 0); err != nil {
		t.Skipf("the file system takes no attribute of %d bytes: %v", MaxRecord, err)
	}
	return o
}

func (v *testVolume) attribute(o Options, path string) string {
	v.Helper()
	buf := make([]byte, maxRefs)
	n, err := unix.Getxattr(filepath.Join(v.path, path), o.AttributePrefix+refsName, buf)
	if errors.Is(err, unix.ENODATA) {
		return ""
	}
	v.must(err)
	return string(buf[:n])
}

// An attribute that cannot be decoded may name any object.
func TestHostileRefs(t *testing.T) {
	line := "Secret/platform/db\n"
	for _, attribute := range []string{
		anyRefs, "x", "\n", "Secret/platform/db", line + "x", line + "\n", "Secret/platform\n", "Secret//db\n", "Secret/platform/\n", "/platform/db\n",
		"Secret/platform/db/x\n", "Pod/platform/db\n", "\x00", "\xff\n", "",
	} {
		if got, ok := decodeRefs(attribute); ok {
			t.Errorf("%q is read as %v", attribute, got)
		}
	}
}

func FuzzRefs(f *testing.F) {
	f.Add("Secret/platform/db\nConfigMap/a/b\n")
	f.Add(anyRefs)
	f.Fuzz(func(t *testing.T, attribute string) {
		named, ok := decodeRefs(attribute)
		for _, ref := range named {
			if strings.ContainsAny(ref.Namespace+ref.Name, "/\n") || ref.Namespace == "" || ref.Name == "" {
				t.Errorf("%q names %v", attribute, ref)
			}
		}
		if ok && len(attribute) <= maxRefs && encodeRefs(named) != attribute {
			t.Errorf("%q is read as %v, %v", attribute, named, ok)
		}
	})
}

func second(_ Result, err error) error { return err }

// TestRefsOfAnyLength: a new process reads the attribute that was written, so it writes nothing again. One that is too long names any object.
func TestRefsOfAnyLength(t *testing.T) {
	o := withLargeAttributes(t)
	before := string(volume.Secret) + "/platform/"
	line := len(before) + 1
	for _, length := range []int{line + 1, usualRefs, usualRefs + 1, maxRefs, maxRefs + 1} {
		t.Run(strconv.Itoa(length), func(t *testing.T) {
			name := strings.Repeat("n", length-line)
			v, shown := newVolume(t), tree(naming(file("a", "1"), name))
			v.write(New(o), shown)
			expect.Equal(t, "changed again", must.Get(New(o).Write(t.Context(), v.root, shown))(t).Changed, false)
			want := before + name + "\n"
			if length > maxRefs {
				want = anyRefs
			}
			expect.Equal(t, "the attribute", v.attribute(o, "a"), want)
		})
	}
}

// TestMeasureHasRoomForAttributes writes the tree whose attributes need the most inodes into a real file system with room for just two
// generations.
func TestMeasureHasRoomForAttributes(t *testing.T) {
	o := withAttributes(t)
	var files, changed []volume.File
	for i := range 40 {
		var names []string
		for j := range i {
			names = append(names, fmt.Sprintf("object-%d-%02d", i, j))
		}
		files = append(files, naming(file(fmt.Sprintf("f%02d", i), "1"), names...))
		changed = append(changed, naming(file(fmt.Sprintf("f%02d", i), "2"), names...))
	}
	fp := Measure(tree(files...))
	v := newSmallVolume(t, 2*int(fp.Bytes)/os.Getpagesize(), 2*int(fp.Inodes)+1+1) // and one for the volume's directory
	w := New(o)
	for range 3 {
		v.write(w, tree(files...))
		v.write(w, tree(changed...))
	}
}

func TestUnsafeTrees(t *testing.T) {
	own := func(files ...volume.File) *volume.Payload { return &volume.Payload{Files: files, DirMode: 0o755} }
	const unclean = `must be clean, relative, and not start with ".."`
	for want, trees := range map[string][]*volume.Payload{
		unclean: {
			own(file("", "")), own(file("/etc/x", "")), own(file("../x", "")), own(file("..", "")), own(file("..data", "")), own(file("..x/y", "")),
			own(file("a/../../x", "")), own(file("a/..", "")), own(file(".", "")), own(file("a/./b", "")), own(file("a//b", "")), own(file("a/", "")),
			own(file("a\x00b", "")), own(file("\x00a", "")),
		},
		"file name too long": {own(file(strings.Repeat("n", 256), "")), own(file(strings.Repeat("d/", 2048)+"f", ""))},
		"out of order after": {own(file("a", "1"), file("a", "2")), own(file("b", ""), file("a", ""))},
		"is a file, and the directory of another one": {
			own(file("a", ""), file("a/b", "")), own(file("a", ""), file("a-", ""), file("a/b/c", "")), own(file("a/b", ""), file("a/b/c/d", "")),
		},
	} {
		for _, o := range []Options{{}, {InPlace: true}} {
			v, w, good := newVolume(t), New(o), tree(file("good", "1"))
			v.write(w, good)
			for _, tr := range trees {
				path, err := tr.Files[len(tr.Files)-1].Path, second(w.Write(t.Context(), v.root, tr))
				expect.Has(t, fmt.Sprintf("%.20q", path), fmt.Sprint(err), want)
				v.check(good)
			}
		}
	}
}

// TestMeasure: what trees need, beside the generation's directory and ..data.
func TestMeasure(t *testing.T) {
	page := int64(os.Getpagesize())
	tail := file("log", "x")
	tail.Size = 2*page + 1
	var named []volume.File
	for i := range 100 {
		named = append(named, naming(file(fmt.Sprintf("d/%02d", i), "1"), "db"))
	}
	// "Secret/platform/db" and a receipt of 35 bytes, each with the kernel's 128 bytes, in units of 1 KiB.
	attributes := int64(100*(19+35+2*128)/1024 + 1)
	for name, test := range map[string]struct {
		tree                 *volume.Payload
		pages, files, others int64
	}{
		"nothing":       {tree(), 0, 0, 0},
		"an empty file": {tree(file("a", "")), 0, 1, 1},
		"one page":      {tree(file("a", strings.Repeat("x", int(page)))), 1, 1, 1},
		"two pages":     {tree(file("a", strings.Repeat("x", int(page)+1))), 2, 1, 1},
		"a larger size": {tree(tail), 3, 1, 1},
		"directories":   {tree(file("a/b/x", "1"), file("a/b/y", "1"), file("a/c/x", "1"), file("d/x", "1")), 4, 4, 6},
		"long names":    {tree(file(strings.Repeat("a", 200), "1"), file(strings.Repeat("b", 200), "1")), 4, 2, 2},
		"attributes":    {tree(named...), 100, 100, 2 + attributes},
	} {
		want := Footprint{Bytes: test.pages * page, Inodes: 2 + test.files + test.others}
		expect.Equal(t, name, Measure(test.tree), want)
	}
}
