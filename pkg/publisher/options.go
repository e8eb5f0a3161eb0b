package publisher

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/refvol/refvol/pkg/access"
	"github.com/refvol/refvol/pkg/loglimit"
	"github.com/refvol/refvol/pkg/mount"
	"github.com/refvol/refvol/pkg/opened"
	"github.com/refvol/refvol/pkg/pod"
	"github.com/refvol/refvol/pkg/volume"
	"github.com/refvol/refvol/pkg/writer"
)

// Objects is the source of the objects. *manager.Manager implements it. Its methods must not wait for the network, and must be safe for
// concurrent use.
type Objects interface {
	// RegisterPod declares which objects a pod's volume needs. A later call replaces them.
	RegisterPod(pod volume.Pod, volumeID string, refs []volume.Ref)
	// MarkMounted marks a pod's volume as mounted. Its objects are then kept, whatever memory they take, until UnregisterPod.
	MarkMounted(pod volume.Pod, volumeID string)
	// UnregisterPod undoes RegisterPod and MarkMounted. It is idempotent.
	UnregisterPod(pod volume.Pod, volumeID string)
	// GetObject returns the newest state of a registered object that is known for a pod. The error is a NotFound API error if the object
	// does not exist, manager.ErrNotSynced if its state is not known, or, for a volume that is not mounted, a manager.FullError.
	GetObject(pod volume.Pod, ref volume.Ref) (*volume.Object, error)
	// DenialErr returns why the state that GetObject returns cannot be kept current any more, or why it cannot be read at all. The error is
	// a Forbidden API error if a right to the object is missing, or an Unauthorized one if no token is accepted. It returns nil while the
	// state is kept current.
	DenialErr(pod volume.Pod, ref volume.Ref) error
	// OnNewCredential is called when there is a new token for an account.
	OnNewCredential(account volume.ServiceAccount)
	// Subscribe sets the function that is called after each change of what GetObject returns to the pods of an account. With the zero
	// account, the change concerns all pods.
	Subscribe(func(volume.ServiceAccount, volume.Ref))
	// Refresh requests the state of objects again if their changes are not reported by a watch. It does not wait for the answer. A change
	// is reported as usual.
	Refresh(pod volume.Pod, refs []volume.Ref)
}

// Identity keeps the tokens with which objects are read for pods. *authz.Tokens implements it.
type Identity interface {
	// Check returns nil if a token states that it belongs to the pod, or an error that wraps authz.ErrNotThePods.
	Check(pod volume.Pod, token volume.Token) error
	// Put stores the token for the pod's account until Drop. It returns true if the account had no token.
	Put(pod volume.Pod, volumeID string, token volume.Token) (first bool)
	// Drop is idempotent.
	Drop(pod volume.Pod, volumeID string)
	// Ready returns nil if an account has a usable token, or else the reason why not.
	Ready(account volume.ServiceAccount) error
}

// Pods reads pods' own specs. *pod.Reader implements it.
type Pods interface {
	// Get reads a pod by namespace, name and UID. It returns a NotFound API error if there is no such pod, and a Forbidden one if it may
	// not be read.
	Get(ctx context.Context, pod volume.Pod) (*pod.Spec, error)
}

// Mounts creates, proves and removes the mounts of volumes. NewMounts returns the real one. See the methods of mount.Mounter.
type Mounts interface {
	Create(ctx context.Context, params mount.Params) (Mount, error)
	Reopen(ctx context.Context, volumeID, target string) (Mount, error)
	Open(ctx context.Context, volumeID, target string) (*os.Root, Usage, error)
	Check(ctx context.Context, volumeID, target string) error
	Unmount(ctx context.Context, volumeID, target string) error
	List(ctx context.Context) ([]mount.Mounted, error)
}

// Usage is how much of a volume is in use. Sizes are in bytes.
type Usage = mount.Usage

// Mount is a writable handle on one volume's file system.
type Mount interface {
	Root() *os.Root
	IsMountedAt(target string) bool
	Attach(ctx context.Context, target string) error
	// Usage returns what the file system holds, including files that are deleted but still open.
	Usage() (Usage, error)
	Close() error
}

// Writer makes a directory show a tree. *writer.Writer implements it. See its methods.
type Writer interface {
	Write(ctx context.Context, dir *os.Root, tree *volume.Payload) (writer.Result, error)
	Compare(ctx context.Context, dir *os.Root, tree *volume.Payload) (writer.Comparison, error)
	Withdraw(ctx context.Context, dir *os.Root, refused map[volume.Ref]bool, record string) (writer.Result, error)
}

// Events reports problems with volumes to the author of the pod. *events.Recorder implements it.
type Events interface {
	// Warn must return at once.
	Warn(pod volume.Pod, reason, message string)
}

type noEvents struct{}

func (noEvents) Warn(volume.Pod, string, string) {}

// Observer receives what happens to volumes, for metrics. *metrics.Metrics implements it. Its methods must return at once and must be safe
// for concurrent use.
type Observer interface {
	// RecordWrite is called for each try to write a volume's files: whether the files changed, how many bytes were written, and why it
	// failed.
	RecordWrite(changed bool, bytes int64, err error)
	// Propagated is called with the time from when the process learned about a change until a mounted volume showed it.
	Propagated(took time.Duration)
	// Opened is called with the time from when an object's files came to show their present content until the last one was opened for the
	// first time.
	Opened(took time.Duration)
}

type noObserver struct{}

func (noObserver) RecordWrite(bool, int64, error) {}
func (noObserver) Propagated(time.Duration)       {}
func (noObserver) Opened(time.Duration)           {}

// Options are what a Publisher needs.
type Options struct {
	Objects Objects
	Mounts  Mounts
	// NotShared returns why mounts of this process don't reach pods, or nil if they do. While it returns an error, no new volume is made,
	// and mounted volumes continue to be served. It is called for each new volume, from any goroutine. If the function is nil, mounts reach
	// pods.
	NotShared func() error
	// NewWriter returns the writer of one volume. If the function is nil, that is writer.New.
	NewWriter func(writer.Options) Writer
	// AttributePrefix is the prefix of the extended attributes that may be set in a volume. See mount.Mounter.AttributePrefix.
	AttributePrefix string
	// Pods is used to read what podEnv and volume sources name. After a restart it is used to find out what was requested for mounted
	// volumes.
	Pods Pods
	// Opens watches who opens files. If it is nil, there are no receipts.
	Opens opened.Watcher
	// KubeletDir is the kubelet's root directory. Target paths are below it.
	KubeletDir string
	Names
	Rights
	Telling
	Times
	Sizes
}

// Names are those of the driver in the pods' specs, and of the Node, for the variables that refer to it.
type Names struct {
	Driver, NodeName string
}

// Rights say whose rights a volume shows objects with.
type Rights struct {
	// CrossNamespace allows volumes to name objects of other namespaces.
	CrossNamespace bool
	// NodeRights means that Objects and Pods read with the rights of this node. A volume may then show only what its pod's own spec names.
	// A refusal may pass: it never removes files, and a publish waits for its end.
	NodeRights bool
	// Identity, if not nil, makes the plugin read objects with the pods' own tokens.
	Identity Identity
	// Reviews answers questions about rights, at the publish and at each resync: for objects of other namespaces and, with Identity, for
	// all objects. CrossNamespace and Identity require it.
	Reviews *access.Reviews
}

// Telling is who is told what happens. Each of them may be nil.
type Telling struct {
	// Events receives problems with volumes.
	Events Events
	// Observer receives what happens to volumes.
	Observer Observer
	// LogLimit limits what is logged about each pod. If it is nil, there is no limit.
	LogLimit *loglimit.Limiter
}

// Times are how often and how long.
type Times struct {
	// ResyncInterval is how often a volume is compared with its objects.
	ResyncInterval time.Duration
	// Reported means that Objects reports all changes by itself. A volume that shows what it should, and whose pod needs no consent, is compared
	// ten times more rarely then.
	Reported bool
	// DefaultSpread is the spread of volumes without that attribute. 0 means none.
	DefaultSpread time.Duration
	// PublishWait limits how long a publish waits for required objects and keys.
	PublishWait time.Duration
}

// Sizes are limits of memory, in bytes.
type Sizes struct {
	// MaxVolumeSize limits one volume's files. MaxTotalSize limits what the file systems of all volumes hold, including their inodes. The
	// volumes of one pod may hold an eighth of MaxTotalSize, but at least MaxVolumeSize.
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
