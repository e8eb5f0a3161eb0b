package publisher

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/refvol/refvol/pkg/access"
	"github.com/refvol/refvol/pkg/mount"
	"github.com/refvol/refvol/pkg/pod"
	"github.com/refvol/refvol/pkg/volume"
)

// Objects is where the objects come from; *manager.Manager is one. None of its methods
// may wait for the network.
type Objects interface {
	// RegisterPod declares which objects a pod's volume needs; again with others replaces them.
	RegisterPod(pod volume.Pod, volumeID string, refs []volume.Ref)
	// Keep says that a pod's volume is mounted: its objects are kept whatever they take, until UnregisterPod.
	Keep(pod volume.Pod, volumeID string)
	// UnregisterPod takes that back; it is idempotent.
	UnregisterPod(pod volume.Pod, volumeID string)
	// GetObject returns the newest state of a registered object that is known for a pod, a NotFound API error if it does not
	// exist, manager.ErrNotSynced, or for a volume that is not mounted a manager.FullError.
	GetObject(pod volume.Pod, ref volume.Ref) (*volume.Object, error)
	// Denied returns why the state that GetObject returns can't be kept current any more, or why it can't be had at all: a
	// Forbidden API error for want of a right to the object, or an Unauthorized one for want of a token that is accepted. It
	// returns nil while it can.
	Denied(pod volume.Pod, ref volume.Ref) error
	// Renewed says that there is a new token of an account.
	Renewed(account volume.ServiceAccount)
	// Subscribe names the function to call after each change of what GetObject returns to the
	// pods of an account, or where this is the zero Account, to all pods.
	Subscribe(func(volume.ServiceAccount, volume.Ref))
	// Prioritize has objects asked for before those that no publish waits for.
	Prioritize(pod volume.Pod, refs []volume.Ref)
	// Refresh has the state of objects asked for again, where nothing reports their
	// changes by itself. It does not wait for the answer; a change is reported like any.
	Refresh(pod volume.Pod, refs []volume.Ref)
}

// Identity keeps the tokens with which objects are read for pods; *authz.Tokens is one.
type Identity interface {
	// Check returns nil if a token says that it is the pod's own, else an error that wraps authz.ErrNotThePods.
	Check(pod volume.Pod, token volume.Token) error
	// Put has the token used for the pod's account until Drop, and returns true if there was none of that account.
	Put(pod volume.Pod, volumeID string, token volume.Token) (first bool)
	// Drop is idempotent.
	Drop(pod volume.Pod, volumeID string)
	// Ready returns nil if there is a token of an account that can be used, else why not.
	Ready(account volume.ServiceAccount) error
}

// Pods reads pods' own specs; *pod.Reader is one.
type Pods interface {
	// Get reads the pod of a namespace, name and UID. The error is a NotFound API error if
	// no such pod exists, a Forbidden one if it may not be read.
	Get(ctx context.Context, pod volume.Pod) (*pod.Spec, error)
}

// Mounts makes, proves and removes the mounts of volumes; NewMounts returns the
// real ones. See the methods of mount.Mounter.
type Mounts interface {
	Create(ctx context.Context, params mount.Params) (Mount, error)
	Reopen(ctx context.Context, volumeID, target string) (Mount, error)
	Open(ctx context.Context, volumeID, target string) (*os.Root, Usage, error)
	Check(ctx context.Context, volumeID, target string) error
	Unmount(ctx context.Context, volumeID, target string) error
	List(ctx context.Context) ([]mount.Mounted, error)
}

// Usage is how much of a volume is used; sizes are in bytes.
type Usage = mount.Usage

// Mount is a writable handle on one volume's file system.
type Mount interface {
	Root() *os.Root
	StillAt(target string) bool
	Attach(ctx context.Context, target string) error
	// Usage says what the file system holds, also of files that readers hold open.
	Usage() (Usage, error)
	Close() error
}

// Events reports to a pod's author what is wrong with the pod's volumes; *events.Recorder is one.
type Events interface {
	// Warn must return at once.
	Warn(pod volume.Pod, reason, message string)
}

type noEvents struct{}

func (noEvents) Warn(volume.Pod, string, string) {}

// Observer hears what happens to volumes, for metrics; *metrics.Metrics is one. Its methods must
// return at once, and must be safe for concurrent use.
type Observer interface {
	// RecordWrite hears of each try to write a volume's files: whether they changed, how many bytes were
	// written, and why it failed.
	RecordWrite(changed bool, bytes int64, err error)
	// Propagated hears how long it took from the moment at which the process learnt of a change
	// until a mounted volume showed it.
	Propagated(took time.Duration)
	// Opened hears how long it took from the moment at which the files of an object came to show what they show until the last
	// of them was first opened.
	Opened(took time.Duration)
}

// Opens watches which files other processes open; *receipts.Group is the real one. See its methods.
type Opens interface {
	Watch(dir int, opened func(ids []string), lost func(err error)) (stop func(), err error)
	Unmark(dir int) error
	ID(dir int, path string) (string, error)
	Drain(within time.Duration) error
	Reads() uint64
	Ignore(file int) error
	Listen(file int) error
}

type noObserver struct{}

func (noObserver) RecordWrite(bool, int64, error) {}
func (noObserver) Propagated(time.Duration)       {}
func (noObserver) Opened(time.Duration)           {}

// Options are what a Publisher needs.
type Options struct {
	Objects Objects
	Mounts  Mounts
	// NotShared says why mounts of this process don't reach pods, nil if they do. Then no volume is made,
	// and those that are mounted are served as ever. A nil function: they do. It is called for each new
	// volume, by any goroutine.
	NotShared func() error
	// AttributePrefix starts the names of extended attributes that may be set in a volume;
	// see mount.Mounter.AttributePrefix.
	AttributePrefix string
	// Pods is asked for what podEnv and volume sources name, and after a restart for what was
	// asked of mounted volumes.
	Pods Pods
	// Driver is the name of the CSI driver in the pods' specs.
	Driver string
	// CrossNamespace lets volumes name objects of other namespaces.
	CrossNamespace bool
	// NodeRights says that Objects and Pods read with the rights of this node. Then a volume may
	// show only what its pod's own spec names, and a refusal may pass: it never takes files away,
	// and a publish waits for its end.
	NodeRights bool
	// Identity, if it is not nil, has objects read with the pods' own tokens.
	Identity Identity
	// Reviews are asked, at the publish and at each resync, about objects of other namespaces
	// and, where there is an Identity, about all of them. Required by both.
	Reviews *access.Reviews
	// Events hears what is wrong with volumes; nil: nobody does.
	Events Events
	// Observer hears of writes; nil: nobody does.
	Observer Observer
	// Opens watches who opens files, for receipts; nil: there are none.
	Opens Opens
	// NodeName is the name of the Node, for the variables that name it.
	NodeName string
	// KubeletDir is the kubelet's root directory; target paths lie below it.
	KubeletDir string
	// ResyncInterval is how often every volume is compared with its objects.
	ResyncInterval time.Duration
	// DefaultSpread is the spread of volumes without the attribute; 0 for none.
	DefaultSpread time.Duration
	// PublishWait bounds how long a publish waits for required objects and keys.
	PublishWait time.Duration
	// MaxVolumeSize bounds the memory, in bytes, that the files of one volume take, MaxTotalSize
	// what the file systems of all volumes hold, with their inodes. Those of one pod may hold an eighth of it, or MaxVolumeSize.
	MaxVolumeSize, MaxTotalSize int64
}

func (o *Options) validate() error {
	var errs []error
	if o.Objects == nil {
		errs = append(errs, errors.New("Objects: Required value"))
	}
	if o.Mounts == nil {
		errs = append(errs, errors.New("Mounts: Required value"))
	}
	if o.AttributePrefix == "" {
		errs = append(errs, errors.New("AttributePrefix: Required value"))
	}
	if o.Pods == nil {
		errs = append(errs, errors.New("Pods: Required value"))
	}
	if o.Reviews == nil && (o.CrossNamespace || o.Identity != nil) {
		errs = append(errs, errors.New("Reviews: Required value: by CrossNamespace and by Identity"))
	}
	if o.NodeRights && (o.CrossNamespace || o.Identity != nil) {
		errs = append(errs, errors.New("NodeRights: Forbidden: with CrossNamespace or Identity: a node may read what the pods' own specs name, in their own namespaces"))
	}
	if o.Driver == "" {
		errs = append(errs, errors.New("Driver: Required value"))
	}
	if o.NodeName == "" {
		errs = append(errs, errors.New("NodeName: Required value"))
	}
	if !filepath.IsAbs(o.KubeletDir) {
		errs = append(errs, fmt.Errorf("KubeletDir: Invalid value: %q: must be an absolute path", o.KubeletDir))
	}
	if o.ResyncInterval <= 0 {
		errs = append(errs, fmt.Errorf("ResyncInterval: Invalid value: %s: must be positive", o.ResyncInterval))
	}
	if o.PublishWait < 0 {
		errs = append(errs, fmt.Errorf("PublishWait: Invalid value: %s: must not be negative", o.PublishWait))
	}
	if o.MaxVolumeSize <= 0 {
		errs = append(errs, fmt.Errorf("MaxVolumeSize: Invalid value: %d: must be positive", o.MaxVolumeSize))
	}
	if o.MaxTotalSize < o.MaxVolumeSize {
		errs = append(errs, fmt.Errorf("MaxTotalSize: Invalid value: %d: must not be less than MaxVolumeSize (%d)", o.MaxTotalSize, o.MaxVolumeSize))
	}
	return errors.Join(errs...)
}
