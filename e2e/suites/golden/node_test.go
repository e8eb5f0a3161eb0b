package golden_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/internal/fakenode"
	"github.com/refvol/refvol/pkg/access"
	"github.com/refvol/refvol/pkg/binding"
	"github.com/refvol/refvol/pkg/mount"
	"github.com/refvol/refvol/pkg/publisher"
)

const (
	driver = "csi.refvol.dev"
	// waitTime is far more than anything takes here.
	waitTime = 30 * time.Second
)

// node is a node with the pod of one volume: a real Publisher on real mounts.
type node struct {
	*testing.T
	g                  *golden
	kubeletDir, target string
	objects            *objects
	opens              *fakenode.Opens
	writes             *writes
	p                  *publisher.Publisher
}

// newNode makes a node on which no plugin runs yet. Its objects are those that the volume shows.
func newNode(t *testing.T, g *golden) *node {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	must(t, err)
	n := &node{
		T: t, g: g, kubeletDir: dir,
		target:  filepath.Join(dir, "pods", string(g.Pod.UID), "volumes/kubernetes.io~csi", g.Name, "mount"),
		objects: &objects{state: g.Objects, refused: g.Refused}, opens: fakenode.NewOpens(), writes: &writes{},
	}
	must(t, os.MkdirAll(filepath.Dir(n.target), 0o755))
	t.Cleanup(func() { _ = unix.Unmount(n.target, unix.MNT_DETACH) }) // of a test that failed
	return n
}

// start starts the plugin, which finds what is mounted. It stops at the test's end.
func (n *node) start() {
	n.Helper()
	ctx := n.ctx()
	mounter, err := mount.New(ctx, mount.Options{Driver: driver, KubeletDir: n.kubeletDir})
	must(n.T, err)
	n.p, err = publisher.New(publisher.Options{
		Options: binding.Options{
			Objects: n.objects, Pods: pods{n.g}, KubeletDir: n.kubeletDir, Driver: driver, ResyncInterval: 200 * time.Millisecond,
			Rights: binding.Rights{CrossNamespace: true, Reviews: &access.Reviews{Ask: n.objects.ask, Verbs: []string{"get"}}},
		},
		Mounts:          publisher.NewMounts(mounter),
		AttributePrefix: mounter.AttributePrefix(),
		Opens:           n.opens,
		Observer:        n.writes,
		NodeName:        "node-1",
		PublishWait:     waitTime,
		MaxVolumeSize:   1 << 20,
		MaxTotalSize:    1 << 24,
	})
	must(n.T, err)
	must(n.T, n.p.Restore(ctx))
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() { n.p.Run(ctx); close(ended) }()
	n.Cleanup(func() { cancel(); <-ended })
}

// ctx returns a context that outlives the test, for the end of the plugin.
func (n *node) ctx() context.Context {
	logger := textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(n.Output()), textlogger.Verbosity(4)))
	return klog.NewContext(context.WithoutCancel(n.Context()), logger)
}

// eventually waits until f returns nil.
func (n *node) eventually(f func() error) {
	n.Helper()
	harness.Eventually(n, waitTime, f)
}

// status returns what is known of the volume.
func (n *node) status() (status publisher.VolumeStatus) {
	for v := range n.p.Volumes {
		status = v
	}
	return status
}

// shows returns nil once all files are known to show a state of the objects, and the volume is in a condition, "" for any.
func (n *node) shows(s state, condition publisher.Condition, refused ...string) error {
	v := n.status()
	for name, object := range s {
		if object == nil || slices.Contains(refused, name) {
			continue
		}
		got, other := v.Shown[refOf(name)], v.Absent[refOf(name)]
		if object.Canary == "0%" {
			got, other = other, got
		}
		if got != object.version() || other.UID != "" {
			return fmt.Errorf("%s is shown or absent at %v and %v, want %v; the volume is %s: %s", name, got, other, object.version(), v.Condition, v.Reason)
		}
	}
	if condition != "" && v.Condition != condition {
		return fmt.Errorf("the volume is %s, want %s: %s", v.Condition, condition, v.Reason)
	}
	return nil
}

// isPruned returns nil once there is one generation.
func (n *node) isPruned() error {
	generations, err := filepath.Glob(n.target + "/..2*")
	if err == nil && len(generations) != 1 {
		err = fmt.Errorf("there are the generations %q", generations)
	}
	return err
}

// unpublish has the volume go, as the kubelet does, with all that is kept for it.
func (n *node) unpublish() {
	n.Helper()
	must(n.T, n.p.Unpublish(n.ctx(), n.g.VolumeID, n.target))
	if _, err := os.Lstat(n.target); !errors.Is(err, os.ErrNotExist) {
		n.Errorf("the target is there after the unpublish: %v", err)
	}
	if n.objects.registered.Load() {
		n.Error("its objects are kept after the unpublish")
	}
}
