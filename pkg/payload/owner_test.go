package payload

import (
	"errors"
	"io/fs"
	"slices"
	"testing"

	"github.com/refvol/refvol/pkg/volume"
)

// Who asks for an owner or a group gets just the modes that it asks for, with an
// fsGroup too; a group beats the fsGroup.
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
			if got, want := show(tree.Tree), []string{"d/x=a x/" + c.wantMode}; !slices.Equal(got, want) {
				t.Errorf("files are %q, want %q", got, want)
			}
			if tree.DirMode != c.wantDir || tree.UID != c.wantUID || tree.GID != c.wantGID {
				t.Errorf("directories are %v, owner %d:%d; want %v and %d:%d",
					tree.DirMode, tree.UID, tree.GID, c.wantDir, c.wantUID, c.wantGID)
			}
		})
	}
}

// A deleted object is forgiven where that is asked for; a missing key never is.
func TestRenderForgivesDeletedObjects(t *testing.T) {
	s := spec(source(0, volume.Secret, "gone"), source(1, volume.Secret, "gone", "k:p"), source(2, volume.Secret, "here", "x:x"))
	here := objects(object(volume.Secret, "here", "x"))
	tree, err := Render(s, here, Options{ForgiveDeleted: true})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := show(tree.Tree), []string{"x=here x/0644"}; !slices.Equal(got, want) {
		t.Errorf("files are %q, want %q", got, want)
	}
	s = spec(source(0, volume.Secret, "here", "y:y"))
	var missing *MissingError
	if _, err := Render(s, here, Options{ForgiveDeleted: true}); !errors.As(err, &missing) {
		t.Errorf("a missing key: %v", err)
	}
}
