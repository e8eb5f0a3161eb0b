package mount

import (
	"testing"

	"github.com/refvol/refvol/pkg/volume"
)

// detached returns a volume that nobody sees, and a Mounter of a kubelet's directory.
func detached(t *testing.T) (*Volume, *Mounter) {
	t.Helper()
	tree, _ := tree(t)
	m, err := New(t.Context(), Options{Driver: "d", KubeletDir: tree.kubeletDir})
	if err != nil {
		t.Fatal(err)
	}
	v, err := m.Create(t.Context(), Params{VolumeID: "v", Size: 4096, Inodes: 8, Mode: 0o755, UID: volume.NoOwner, GID: volume.NoOwner})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { v.Close() })
	return v, m
}
