package payload

import (
	"io/fs"
	"reflect"
	"slices"
	"testing"

	"github.com/refvol/refvol/pkg/volume"
)

// A volume that names an owner or a group gets exactly its modes, with an fsGroup too. A group wins over the fsGroup.
func TestRenderOwner(t *testing.T) {
	id := func(n int64) *int64 { return &n }
	const widened = 0o755 | fs.ModeSetgid
	for _, c := range []struct {
		name              string
		uid, gid, fsGroup *int64
		wantMode          string
		wantDir           fs.FileMode
		wantUID, wantGID  int
	}{
		{"nobody", nil, nil, nil, "0400", 0o755, 0, 0},
		{"fsGroup", nil, nil, id(2000), "0440", widened, 0, 2000},
		{"uid", id(1000), nil, nil, "0400", 0o755, 1000, 0},
		{"uid with fsGroup", id(1000), nil, id(2000), "0400", 0o755, 1000, 2000},
		{"uid of root with fsGroup", id(0), nil, id(2000), "0400", 0o755, 0, 2000},
		{"gid", nil, id(3000), nil, "0400", 0o755, 0, 3000},
		{"gid with fsGroup", nil, id(3000), id(2000), "0400", 0o755, 0, 3000},
		{"gid of root with fsGroup", nil, id(0), id(2000), "0400", 0o755, 0, 0},
		{"all", id(1000), id(3000), id(2000), "0400", 0o755, 1000, 3000},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := spec(source(0, volume.Secret, "a", "x:d/x"))
			mode := fs.FileMode(0o400)
			s.DefaultMode, s.UID, s.GID = &mode, c.uid, c.gid
			tree, err := Render(s, objects(object(volume.Secret, "a", "x")), Options{FSGroup: c.fsGroup})
			if err != nil {
				t.Fatal(err)
			}
			if got, want := show(tree.Payload), []string{"d/x=a x/" + c.wantMode}; !slices.Equal(got, want) {
				t.Errorf("files are %q, want %q", got, want)
			}
			if tree.DirMode != c.wantDir || tree.UID != c.wantUID || tree.GID != c.wantGID {
				t.Errorf("directories are %v, owner %d:%d; want %v and %d:%d",
					tree.DirMode, tree.UID, tree.GID, c.wantDir, c.wantUID, c.wantGID)
			}
		})
	}
}

// A file belongs to its item's user, or else to the user of all files, or else to that of the pod's own volume that names the object, as in
// the kubelet's volumes. A user does not make modes exact.
func TestRenderUser(t *testing.T) {
	id := func(n int64) *int64 { return &n }
	for _, c := range []struct {
		name                    string
		ofItem, ofAll, ofVolume *int64
		want                    *int64
		wantMode                fs.FileMode
	}{
		{"none", nil, nil, nil, nil, 0o440},
		{"item's", id(1), nil, nil, id(1), 0o440},
		{"item's root", id(0), nil, id(3), id(0), 0o440},
		{"item's beats all", id(1), id(2), id(3), id(1), 0o400},
		{"all files' is the tree's", nil, id(2), id(3), nil, 0o400},
		{"default", nil, nil, id(3), id(3), 0o440},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := spec(source(0, volume.Secret, "a", "x:x"), source(1, volume.Secret, "b"))
			mode := fs.FileMode(0o400)
			s.DefaultMode, s.UID = &mode, c.ofAll
			s.Sources[0].Projection.Items[0].User = c.ofItem
			s.Sources[0].Projection.DefaultUser, s.Sources[1].Projection.DefaultUser = c.ofVolume, c.ofItem
			tree, err := Render(s, objects(object(volume.Secret, "a", "x"), object(volume.Secret, "b", "y")), Options{FSGroup: id(2000)})
			if err != nil {
				t.Fatal(err)
			}
			if got := tree.Files[0]; !reflect.DeepEqual(got.User, c.want) || got.Mode != c.wantMode {
				t.Errorf("%s has user %v", got, got.User)
			}
			// Keys without items only have the volume's user.
			want := c.ofItem
			if c.ofAll != nil {
				want = nil
			}
			if got := tree.Files[1]; !reflect.DeepEqual(got.User, want) {
				t.Errorf("%s has user %v", got, got.User)
			}
		})
	}
}
