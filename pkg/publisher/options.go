package publisher

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/refvol/refvol/pkg/mount"
	"github.com/refvol/refvol/pkg/volume"
)

// Objects is where the objects come from; *manager.Manager is one. None of its methods
// may wait for the network.
type Objects interface {
	// Subscribe names the function to call after each change of what GetObject returns to the
	// pods of an account, or where this is the zero Account, to all pods.
	Subscribe(func(volume.Account, volume.Ref))
	// RegisterPod declares which objects a pod's volume needs; again with others
	// replaces them.
	RegisterPod(pod volume.Pod, volumeID string, refs []volume.Ref)
	// UnregisterPod takes that back; it is idempotent.
	UnregisterPod(pod volume.Pod, volumeID string)
	// GetObject returns the newest state of a registered object that is known for a pod, a
	// NotFound API error if it does not exist, or manager.ErrNotSynced.
	GetObject(pod volume.Pod, ref volume.Ref) (*volume.Object, error)
	// Denied returns why the state that GetObject returns can't be kept current any more, or
	// why it can't be had at all: a Forbidden API error for want of a right to the object, or an
	// Unauthorized one for want of a token that is accepted. It returns nil while it can.
	Denied(pod volume.Pod, ref volume.Ref) error
	// Prioritize has objects asked for before those that no publish waits for.
	Prioritize(pod volume.Pod, refs []volume.Ref)
	// Renewed tells that there is a new token of an account.
	Renewed(account volume.Account)
	// Refresh has the state of objects asked for again, where nothing tells of their
	// changes by itself. It does not wait for the answer; a change is told like any.
	Refresh(pod volume.Pod, refs []volume.Ref)
}

// Pods reads pods' own specs; *podenv.Reader is one.
type Pods interface {
	// Env reads a pod's spec. What it returns tells of a container what its envFrom and
	// env set, and in words what of it a volume can't know; or podenv.ErrUnusable if the
	// pod has no such container. The error is a NotFound API error if no pod of that UID
	// exists, a Forbidden one if it may not be read.
	Env(ctx context.Context, pod volume.Pod) (func(container string) (env volume.Env, leftOut []string, err error), error)
}

// Access says whether a pod may have an object, which need not exist, by answers that are
// at most maxAge old; *authz.Reviewer is one. An error says nothing about that.
type Access interface {
	// Admitted asks for a new volume, Allowed for one that is mounted.
	Admitted(ctx context.Context, pod volume.Pod, ref volume.Ref, maxAge time.Duration) (bool, error)
	Allowed(ctx context.Context, pod volume.Pod, ref volume.Ref, maxAge time.Duration) (bool, error)
	// Needs names the rights that make a pod admitted, for a person.
	Needs() string
}

// Identity keeps the tokens with which objects are read for pods; *authz.Authenticator is one.
type Identity interface {
	// Prove asks whether a token is the pod's own. The error wraps authz.ErrNotThePods, or
	// says nothing about that.
	Prove(ctx context.Context, pod volume.Pod, token volume.Token) error
	// Put has the token used for the pod's account until Drop, and returns true if there
	// was none of that account. It does not wait.
	Put(pod volume.Pod, volumeID string, token volume.Token) (first bool)
	// Drop is idempotent.
	Drop(pod volume.Pod, volumeID string)
}

// Mounts makes, proves and removes the mounts of volumes; NewMounts returns the
// real ones.
type Mounts interface {
	Create(ctx context.Context, params mount.Params) (Mount, error)
	Reopen(ctx context.Context, volumeID, target string) (Mount, error)
	Check(ctx context.Context, volumeID, target string) error
	Unmount(ctx context.Context, volumeID, target string) error
	List(ctx context.Context) ([]mount.Mounted, error)
	Usage(ctx context.Context, volumeID, target string) (mount.Usage, error)
}

// Mount is a writable handle on one volume's file system.
type Mount interface {
	Root() *os.Root
	Attach(ctx context.Context, target string) error
	// StillAt reports whether the mount at target is the one that the handle was reopened
	// from.
	StillAt(ctx context.Context, target string) bool
	// Grow makes the file system hold at least so many bytes and inodes. It never shrinks.
	Grow(ctx context.Context, size, inodes int64) error
	Close() error
}

// Options are what a Publisher needs.
type Options struct {
	Objects Objects
	Mounts  Mounts
	// AttributePrefix starts the names of extended attributes that may be set in a volume;
	// see mount.Mounter.AttributePrefix.
	AttributePrefix string
	// Pods is asked for the environment of podEnv sources.
	Pods Pods
	// CrossNamespace lets volumes name objects of other namespaces.
	CrossNamespace bool
	// Identity, if it is not nil, has objects read with the pods' own tokens.
	Identity Identity
	// Access is asked, at the publish and at each resync, about objects of other namespaces
	// and, where there is an Identity, about all of them. Required by both.
	Access Access
	// Events hears what ails volumes; nil: nobody does.
	Events Events
	// NodeName is the name of the Node, for the variables that name it.
	NodeName string
	// StateDir is the directory of the records; it is made if it does not exist.
	StateDir string
	// KubeletDir is the kubelet's root directory; target paths lie below it.
	KubeletDir string
	// ResyncInterval is how often every volume is compared with its objects.
	ResyncInterval time.Duration
	// PublishWait bounds how long a publish waits for required objects and keys.
	PublishWait time.Duration
	// MaxVolumeSize and MaxTotalSize bound the memory, in bytes, that the files of
	// one volume and of all volumes take.
	MaxVolumeSize, MaxTotalSize int64
	// Workers is how many volumes are reconciled at once; 0 means two for each processor,
	// but four at least.
	Workers int
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
	if o.Access == nil && (o.CrossNamespace || o.Identity != nil) {
		errs = append(errs, errors.New("Access: Required value: by CrossNamespace and by Identity"))
	}
	if o.NodeName == "" {
		errs = append(errs, errors.New("NodeName: Required value"))
	}
	if !filepath.IsAbs(o.KubeletDir) {
		errs = append(errs, fmt.Errorf("KubeletDir: Invalid value: %q: must be an absolute path", o.KubeletDir))
	}
	if o.StateDir == "" {
		errs = append(errs, errors.New("StateDir: Required value"))
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
