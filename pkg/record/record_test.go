package record

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/refvol/refvol/internal/must"
	"github.com/refvol/refvol/pkg/volume"
)

func ref(name string) volume.Ref {
	return volume.Ref{Kind: volume.Secret, Namespace: "shop", Name: name}
}

// The kernel's limit for an attribute is 64 KiB.
func TestTheLargestRecord(t *testing.T) {
	versions := Versions{}
	for i := range volume.MaxReferences {
		versions[ref(fmt.Sprint(i))] = volume.Version{UID: types.UID(strings.Repeat("u", 36)), ResourceVersion: "18446744073709551615"}
	}
	if n := len(Record{Absent: versions}.Encode()); n > 22_000 {
		t.Errorf("%d bytes", n)
	}
}

func TestHostileVersions(t *testing.T) {
	line := Record{Shown: Versions{ref("db"): {UID: "u", ResourceVersion: "1"}}}.Encode()
	for _, text := range []string{"\x00", "\n\n", "a b", "a b c d\n", strings.Repeat("x", 60_000), strings.Repeat("x y z\n", 9_000), strings.TrimSuffix(line, " 1\n"), strings.TrimSuffix(line, "\n") + " more\n"} {
		if got := Decode(text, []volume.Ref{ref("db")}); len(got.Shown)+len(got.Absent) > 0 {
			t.Errorf("%.20q is read as %v", text, got)
		}
	}
	if got := Decode("garbage\n"+line+"x", []volume.Ref{ref("db")}); len(got.Shown) != 1 {
		t.Errorf("beside garbage: %v", got)
	}
}

// withAttributes returns a directory, and the prefix of attributes that this process may set in it.
func withAttributes(t *testing.T) (*os.Root, string) {
	t.Helper()
	for _, parent := range []string{"/dev/shm", t.TempDir()} {
		path, err := os.MkdirTemp(parent, "refvol-record-")
		if err != nil {
			continue
		}
		t.Cleanup(func() { os.RemoveAll(path) })
		for _, prefix := range []string{"trusted.refvol.", "user.refvol."} {
			if unix.Setxattr(path, prefix+"try", []byte("1"), 0) == nil {
				dir, err := os.OpenRoot(path)
				must.Do(t, err)
				t.Cleanup(func() { dir.Close() })
				return dir, prefix
			}
		}
	}
	t.Skip("needs root, or a file system with attributes of users")
	return nil, ""
}

// What SetPod stores, Pod returns, with the longest names too.
func TestPod(t *testing.T) {
	dir, prefix := withAttributes(t)
	for _, pod := range []volume.Pod{{Namespace: "shop", Name: "web-0"}, {Namespace: strings.Repeat("n", 63), Name: strings.Repeat("a.", 126) + "b"}} {
		must.Do(t, SetPod(dir, prefix, pod))
		if namespace, name, err := Pod(dir, prefix); namespace != pod.Namespace || name != pod.Name || err != nil {
			t.Errorf("%s is read as %q, %q, %v", pod, namespace, name, err)
		}
	}
}

// An invalid pod name never gets into a request.
func TestHostilePod(t *testing.T) {
	dir, prefix := withAttributes(t)
	for _, text := range []string{"", "shop", "/", "shop/", "/web", "../web", "shop/../x", "shop/web/log", "shop/web?x=y", "shop/%2e", "Shop/web", "shop/web\x00", "shop/" + strings.Repeat("x", 254), strings.Repeat("x", 3000)} {
		must.Do(t, SetPod(dir, prefix, volume.Pod{Namespace: "n", Name: "p"}))
		root, err := dir.Open(".")
		must.Do(t, err)
		err = unix.Fsetxattr(int(root.Fd()), prefix+podAttribute, []byte(text), 0)
		root.Close()
		must.Do(t, err)
		if namespace, name, err := Pod(dir, prefix); !errors.Is(err, errNoPod) || namespace != "" || name != "" {
			t.Errorf("%.20q is read as %q, %q, %v", text, namespace, name, err)
		}
	}
}

// TestAbsent: a record keeps an absent canary, and a release that knows none reads only what is shown.
func TestAbsent(t *testing.T) {
	r := Record{Shown: Versions{ref("db"): {UID: "u", ResourceVersion: "1"}}, Absent: Versions{ref("canary"): {UID: "v", ResourceVersion: "2"}}}
	got := Decode(r.Encode(), []volume.Ref{ref("db"), ref("canary")})
	if !got.IsEqual(r) {
		t.Errorf("%v becomes %v", r, got)
	}
	if left := r.Without(map[volume.Ref]bool{ref("canary"): true}); len(left.Absent) != 0 || len(left.Shown) != 1 || len(r.Absent) != 1 {
		t.Error(left, r)
	}
	r.Absent.Set(ref("canary"), volume.Version{})
	r.Absent.Set(ref("other"), volume.Version{UID: "w"})
	if len(r.Absent) != 1 || r.Absent[ref("other")].UID != "w" {
		t.Error(r.Absent)
	}
	for line := range strings.Lines(got.Encode()) { // the form of earlier releases has three fields
		if n := len(strings.Fields(line)); (n == 3) != strings.Contains(line, " u 1") {
			t.Errorf("%q", line)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(Record{Shown: Versions{ref("db"): {UID: "u", ResourceVersion: "1"}}, Absent: Versions{ref("db"): {UID: "v", ResourceVersion: "2"}}}.Encode())
	f.Fuzz(func(t *testing.T, text string) {
		got := Decode(text, []volume.Ref{ref("db")})
		if again := Decode(got.Encode(), []volume.Ref{ref("db")}); !got.IsEqual(again) {
			t.Errorf("%v becomes %v", got, again)
		}
	})
}
