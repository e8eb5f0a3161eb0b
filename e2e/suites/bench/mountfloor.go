package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/pkg/mount"
	refvol "github.com/refvol/refvol/pkg/volume"
	"github.com/refvol/refvol/pkg/writer"
)

// mountFloor makes volumes with nothing around the mount and its files: no request can be
// answered before that is done. It is for one goroutine.
type mountFloor struct {
	mounter *mount.Mounter
	dir     string
}

// newMountFloor returns one whose mounts go with the scenario. The name is unique in the lab.
func (l *lab) newMountFloor(ctx context.Context, name string) (*mountFloor, error) {
	f := &mountFloor{dir: filepath.Join(l.dir, name)}
	if err := os.Mkdir(f.dir, 0o755); err != nil {
		return nil, err
	}
	l.onEnd(f.unmountAll)
	var err error
	f.mounter, err = mount.New(ctx, mount.Options{Driver: harness.DriverName, KubeletDir: f.dir})
	return f, err
}

// publish makes a volume that shows the object, as the plugin would, and returns how long
// that took.
func (f *mountFloor) publish(ctx context.Context, number int, object *corev1.ConfigMap) (took time.Duration, err error) {
	id := fmt.Sprint("floor-", number)
	parent := filepath.Join(f.dir, id)
	if err := os.Mkdir(parent, 0o750); err != nil {
		return 0, err
	}
	tree := treeOf(object)
	begin := time.Now()
	v, err := f.mounter.Create(ctx, mount.Params{
		VolumeID: id, Size: 32 << 20, Inodes: 1 << 15, Mode: tree.DirMode, UID: tree.UID, GID: tree.GID,
	})
	if err != nil {
		return 0, err
	}
	defer func() {
		err = errors.Join(err, v.Close())
		took = time.Since(begin)
	}()
	if _, err := writer.New(writer.Options{}).Write(ctx, v.Root(), tree); err != nil {
		return 0, err
	}
	return 0, v.Attach(ctx, filepath.Join(parent, "mount"))
}

// treeOf returns what a volume shows of a ConfigMap of two keys, unless it is told
// otherwise.
func treeOf(object *corev1.ConfigMap) *refvol.Payload {
	tree := &refvol.Payload{DirMode: 0o755, UID: refvol.NoOwner, GID: refvol.NoOwner}
	for _, key := range []string{paddingKey, valueKey} {
		tree.Files = append(tree.Files, refvol.File{Path: key, Data: []byte(object.Data[key]), Mode: 0o644})
	}
	return tree
}

func (f *mountFloor) unmountAll() error {
	mounts, err := harness.MountsBelow(f.dir)
	for _, m := range mounts {
		err = errors.Join(err, os.NewSyscallError("umount2 "+m.Target, unix.Unmount(m.Target, unix.MNT_DETACH)))
	}
	return err
}
