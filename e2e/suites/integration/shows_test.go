package integration

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/e2e/tools/harness"
)

func TestWhatAVolumeShows(t *testing.T) {
	n := newNode(t)
	a, b, c := n.canary(), n.canary(), n.canary()
	binary := n.canary() + "\x00\xff\n"
	n.applyConfigMap(&corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "app"},
		Data:       map[string]string{"a": a, ".dot": b},
		BinaryData: map[string][]byte{"bin": []byte(binary)},
	})
	n.configMap("nothing", nil)
	n.secret("db", map[string]string{"a": c})

	for _, tc := range []struct {
		name       string
		attributes map[string]string
		want       map[string]string
		mode       map[string]fs.FileMode
	}{
		{
			name:       "short ConfigMap",
			attributes: map[string]string{"configMap": "app"},
			want:       map[string]string{"a": a, ".dot": b, "bin": binary},
			mode:       map[string]fs.FileMode{"a": 0o644, "bin": 0o644},
		},
		{
			name:       "short Secret with defaultMode",
			attributes: map[string]string{"secret": "db", "defaultMode": "0400"},
			want:       map[string]string{"a": c},
			mode:       map[string]fs.FileMode{"a": 0o400},
		},
		{
			name: "short with items",
			attributes: map[string]string{
				"configMap": "app", "defaultMode": "0440",
				"items": `[{"key": "a", "path": "x/y/a"}, {"key": "bin", "path": "bin", "mode": "0111"}]`,
			},
			want: map[string]string{"x/y/a": a, "bin": binary},
			mode: map[string]fs.FileMode{"x/y/a": 0o440, "bin": 0o111},
		},
		{
			name:       "mode as Kubernetes writes it, decimal",
			attributes: map[string]string{"sources": `[{"configMap": {"name": "app", "items": [{"key": "a", "path": "a", "mode": 256}]}}]`},
			want:       map[string]string{"a": a},
			mode:       map[string]fs.FileMode{"a": 0o400},
		},
		{
			name:       "a later source wins over an earlier one",
			attributes: map[string]string{"sources": "- configMap: {name: app}\n- secret: {name: db}\n"},
			want:       map[string]string{"a": c, ".dot": b, "bin": binary},
		},
		{
			name:       "one object twice",
			attributes: map[string]string{"sources": "- secret: {name: db}\n- secret: {name: db, items: [{key: a, path: again}]}\n"},
			want:       map[string]string{"a": c, "again": c},
		},
		{
			name:       "empty object",
			attributes: map[string]string{"configMap": "nothing"},
			want:       map[string]string{},
		},
		{
			name:       "optional object missing",
			attributes: map[string]string{"configMap": "none", "optional": "true"},
			want:       map[string]string{},
		},
		{
			name:       "optional key missing",
			attributes: map[string]string{"sources": "- configMap: {name: app, optional: true, items: [{key: none, path: none}, {key: a, path: a}]}"},
			want:       map[string]string{"a": a},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			v := n.volume(tc.attributes)
			n.mustPublish(v)
			defer n.mustUnpublish(v)
			files, err := harness.Files(n.Target(v))
			if err != nil {
				t.Fatal(err)
			}
			got := make(map[string]string)
			for path, f := range files {
				got[path] = f.Content
				if want, ok := tc.mode[path]; ok && f.Mode != want {
					t.Errorf("mode of %s = %v, want %v", path, f.Mode, want)
				}
			}
			if !maps.Equal(got, tc.want) {
				t.Errorf("files = %q, want %q", got, tc.want)
			}
		})
	}
	n.wantNothingLeft()
}

func TestAttributesOf64KiB(t *testing.T) {
	n := newNode(t)
	value := n.canary()
	n.configMap("app", map[string]string{"key": value})
	// Many items of one key, padded with YAML comments up to the limit.
	var sources strings.Builder
	sources.WriteString("- configMap:\n    name: app\n    items:\n")
	for i := range 500 {
		fmt.Fprintf(&sources, "    - {key: key, path: dir%02d/file%d}\n", i%50, i)
	}
	const name, limit = "sources", 64 << 10
	sources.WriteString("#" + strings.Repeat("x", limit-len(name)-sources.Len()-1))
	v := n.volume(map[string]string{name: sources.String()})
	n.mustPublish(v)
	files, err := harness.Files(n.Target(v))
	if err != nil || len(files) != 500 {
		t.Errorf("%d files, %v, want 500", len(files), err)
	}
	n.mustUnpublish(v)

	v = n.volume(map[string]string{name: sources.String() + "x"})
	wantStatus(t, n.Publish(t.Context(), v), codes.InvalidArgument, "volumeAttributes", "65536")
	n.wantNothingLeft()
}

func TestMountGroupOwnsAndWidens(t *testing.T) {
	n := newNode(t)
	n.secret("db", map[string]string{"key": n.canary(), "deep": n.canary()})
	gid, err := harness.MappedGID()
	if err != nil {
		t.Fatal(err)
	}
	v := n.volume(map[string]string{
		"secret": "db", "defaultMode": "0400",
		"items": "[{key: key, path: key}, {key: deep, path: a/deep, mode: 0200}]",
	})
	v.MountGroup = strconv.Itoa(gid)
	n.mustPublish(v)

	files, err := harness.Files(n.Target(v))
	if err != nil {
		t.Fatal(err)
	}
	for path, mode := range map[string]fs.FileMode{"key": 0o440, "a/deep": 0o640} {
		if f := files[path]; f.GID != gid || f.UID != 0 || f.Mode != mode {
			t.Errorf("%s is %v of %d:%d, want %v of 0:%d", path, f.Mode, f.UID, f.GID, mode, gid)
		}
	}
	for _, dir := range []string{"", "..data/a"} {
		info, err := os.Stat(filepath.Join(n.Target(v), dir))
		if err != nil {
			t.Fatal(err)
		}
		sys, ok := info.Sys().(*syscall.Stat_t)
		if !ok {
			t.Fatalf("no owner known of %q", dir)
		}
		if int(sys.Gid) != gid || info.Mode()&fs.ModeSetgid == 0 || info.Mode().Perm()&0o550 != 0o550 {
			t.Errorf("directory %q is %v of group %d, want setgid, 0550 at least, and group %d", dir, info.Mode(), sys.Gid, gid)
		}
	}
}
