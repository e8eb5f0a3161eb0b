package integration

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/e2e/tools/harness"
)

func TestPublishHasTheKubeletsLayout(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	color, password := n.canary(), n.canary()
	n.configMap("app", map[string]string{"color": color, "empty": ""})
	n.secret("db", map[string]string{"password": password})
	v := n.volume(map[string]string{"sources": `
- configMap: {name: app}
- secret: {name: db, items: [{key: password, path: conf/db/password, mode: 0400}]}
`})
	n.mustPublish(v)

	entries, err := harness.List(n.Target(v))
	if err != nil {
		t.Fatal(err)
	}
	generation := regexp.MustCompile(`\.\.\d{4}_\d\d_\d\d_\d\d_\d\d_\d\d\.\d+`)
	var got []string
	for _, e := range entries {
		line := fmt.Sprintf("%s %d:%d %s", e.Mode, e.UID, e.GID, e.Path)
		if e.Link != "" {
			line += " -> " + e.Link
		}
		got = append(got, generation.ReplaceAllString(line, "..GENERATION"))
	}
	want := []string{
		"drwxr-xr-x 0:0 ..GENERATION",
		"-rw-r--r-- 0:0 ..GENERATION/color",
		"drwxr-xr-x 0:0 ..GENERATION/conf",
		"drwxr-xr-x 0:0 ..GENERATION/conf/db",
		"-r-------- 0:0 ..GENERATION/conf/db/password",
		"-rw-r--r-- 0:0 ..GENERATION/empty",
		"Lrwxrwxrwx 0:0 ..data -> ..GENERATION",
		"Lrwxrwxrwx 0:0 color -> ..data/color",
		"Lrwxrwxrwx 0:0 conf -> ..data/conf",
		"Lrwxrwxrwx 0:0 empty -> ..data/empty",
	}
	if !slices.Equal(got, want) {
		t.Errorf("the tree is\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	n.wantContent(v, "color", color)
	n.wantContent(v, "empty", "")
	n.wantContent(v, "conf/db/password", password)
	n.mustUnpublish(v)
	n.wantNothingLeft()
}

func TestMountIsLockedDown(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.configMap("app", map[string]string{"key": n.canary()})
	v := n.short("app")
	n.mustPublish(v)
	mounts, err := n.VolumeMounts()
	if err != nil {
		t.Fatal(err)
	}
	if len(mounts) != 1 {
		t.Fatalf("mounts = %+v, want one", mounts)
	}
	m := mounts[0]
	if m.Target != n.Target(v) || m.Type != "tmpfs" || m.Source != harness.DriverName+":"+v.ID() {
		t.Errorf("mount = %+v, want a tmpfs from %s:%s at the target", m, harness.DriverName, v.ID())
	}
	for _, option := range []string{"ro", "nosuid", "nodev", "noexec"} {
		if !slices.Contains(strings.Split(m.Options, ","), option) {
			t.Errorf("mount options = %q, want %s", m.Options, option)
		}
	}
	for _, option := range []string{"size=", "nr_inodes="} {
		if !strings.Contains(m.SuperOptions, option) {
			t.Errorf("tmpfs options = %q, want %s", m.SuperOptions, option)
		}
	}
}

// TestNeverVisibleAndIncomplete looks at the targets all the time while volumes are
// published: a target that is a mount must show everything from the first look on.
func TestNeverVisibleAndIncomplete(t *testing.T) {
	n := newNode(t)
	data := make(map[string]string)
	for i := range 50 {
		data[fmt.Sprint("key", i)] = n.canary()
	}
	n.configMap("app", data)
	seen := 0
	for range 20 {
		v := n.short("app")
		answer := n.publishing(v)
		for mounted := false; !mounted; {
			var target, parent unix.Stat_t // both may be on a tmpfs, where /tmp is one
			if unix.Stat(n.Target(v), &target) != nil || unix.Stat(filepath.Dir(n.Target(v)), &parent) != nil || target.Dev == parent.Dev {
				continue
			}
			mounted = true
			files, err := harness.Files(n.Target(v))
			if err != nil || len(files) != len(data) {
				t.Fatalf("%d files show at the first look, %v, want %d", len(files), err, len(data))
			}
			if len(answer) == 0 {
				seen++
			}
		}
		if err := n.answer(answer, soon); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d of 20 volumes were seen before the answer of their publish", seen)
}
