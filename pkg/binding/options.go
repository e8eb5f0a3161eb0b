package binding

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/refvol/refvol/pkg/access"
	"github.com/refvol/refvol/pkg/pod"
	"github.com/refvol/refvol/pkg/volume"
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
	// ReadAgain requests the state of objects again whose known state is older than what a pod's files show, if nothing follows them. It does
	// not wait, and the answer may be as old.
	ReadAgain(pod volume.Pod, refs []volume.Ref)
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

// Events reports problems with volumes to the author of the pod. *events.Recorder implements it.
type Events interface {
	// Warn must return at once.
	Warn(pod volume.Pod, reason, message string)
}

// Options are what the bindings of a node need.
type Options struct {
	Objects Objects
	// Pods is used to read what podEnv and volume sources name. After a restart it is used to find out what was requested for mounted
	// volumes.
	Pods Pods
	// Events receives problems with volumes. It may be nil.
	Events Events
	// KubeletDir is the kubelet's root directory. Target paths are below it.
	KubeletDir string
	// Driver is the name of the driver in the pods' specs.
	Driver string
	Rights
	// ResyncInterval is how often a volume is compared with its objects.
	ResyncInterval time.Duration
	// Reported means that Objects reports all changes by itself. A volume that shows what it should, and whose pod needs no consent, is compared
	// ten times more rarely then.
	Reported bool
	// DefaultSpread is the spread of volumes without that attribute. 0 means none.
	DefaultSpread time.Duration
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

// Default sets what may be missing.
func (o *Options) Default() {
	if o.Events == nil {
		o.Events = noEvents{}
	}
	o.KubeletDir = filepath.Clean(o.KubeletDir)
}

type noEvents struct{}

func (noEvents) Warn(volume.Pod, string, string) {}

// Validate returns an error that names all options that are missing or wrong.
func (o *Options) Validate() error {
	var errs []error
	if o.Objects == nil {
		errs = append(errs, errors.New("Objects: Required value"))
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
	if !filepath.IsAbs(o.KubeletDir) {
		errs = append(errs, fmt.Errorf("KubeletDir: Invalid value: %q: must be an absolute path", o.KubeletDir))
	}
	if o.ResyncInterval <= 0 {
		errs = append(errs, fmt.Errorf("ResyncInterval: Invalid value: %s: must be positive", o.ResyncInterval))
	}
	return errors.Join(errs...)
}
