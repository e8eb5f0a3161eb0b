// Package access answers what a volume may show of an object: it is present, absent, refused
// or unknown, and why.
//
// Refused means that an access review says no: the pod has no right to the object. Denied means
// that the API server refuses the read itself, or accepts no token for it.
//
// It owns the registration of the objects, the reviews of the pods' rights with their
// confirmation, and the proof of the pods' tokens, each on its own work queue, so that a slow
// API server holds up no volume. A review is of a service account and an object, and all
// volumes of both share it. The package must not know what a volume makes of an answer, or
// how an object reaches the process.
package access

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"github.com/refvol/refvol/pkg/authz"
	"github.com/refvol/refvol/pkg/volume"
)

// workers is how many questions of mounted volumes are under way at once.
const workers = 16

var (
	// ErrUnreviewed reports that a pod's right to an object is not known: no question about it
	// was answered.
	ErrUnreviewed = errors.New("access could not be reviewed")
	// ErrPending reports that it is not known yet: a question, or its confirmation, is under way.
	ErrPending = errors.New("access is under review")
	// errPanicked is a panic of a question, reported as an error.
	errPanicked = errors.New("the plugin panicked; its log has the stack")
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
	// GetObject returns the newest state of a registered object that is known for a pod, a
	// NotFound API error if it does not exist, manager.ErrNotSynced, or for a volume that is not mounted a
	// manager.FullError.
	GetObject(pod volume.Pod, ref volume.Ref) (*volume.Object, error)
	// Denied returns why the state that GetObject returns can't be kept current any more, or
	// why it can't be had at all: a Forbidden API error for want of a right to the object, or an
	// Unauthorized one for want of a token that is accepted. It returns nil while it can.
	Denied(pod volume.Pod, ref volume.Ref) error
	// Renewed tells that there is a new token of an account.
	Renewed(account volume.Account)
}

// Reviews says how the rights of service accounts are reviewed.
type Reviews struct {
	// Ask asks the API server.
	Ask authz.Ask
	// Verbs are the rights to each object that a new volume's pod must have. The last one is what it must keep
	// while the volume is mounted.
	Verbs []string
}

func (r *Reviews) kept() string { return r.Verbs[len(r.Verbs)-1] }

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

// Options are what a Tracker needs.
type Options struct {
	Objects Objects
	// Reviews is asked about objects of other namespaces and, where there is an Identity,
	// about all of them. Required by both.
	Reviews *Reviews
	// Identity, if it is not nil, has objects read with the pods' own tokens.
	Identity Identity
	// RefusalsPass is manager.Options.RefusalsPass of Objects.
	RefusalsPass bool
	// CrossNamespace lets volumes show objects of other namespaces.
	CrossNamespace bool
	// MaxAge is how old the answer may be that a mounted volume relies on. An account is asked about once in that
	// time, however many volumes it has.
	MaxAge time.Duration
	// Changed is called when the answers about an object have changed for the pods of an
	// account, and Renewed when an account that had no token has one. Neither may block.
	Changed func(volume.Account, volume.Ref)
	Renewed func(volume.Account)
}

func (o *Options) validate() error {
	var errs []error
	if o.Objects == nil {
		errs = append(errs, errors.New("Objects: Required value"))
	}
	if o.Reviews == nil && (o.CrossNamespace || o.Identity != nil) {
		errs = append(errs, errors.New("Reviews: Required value: by CrossNamespace and by Identity"))
	}
	if o.Reviews != nil && (o.Reviews.Ask == nil || len(o.Reviews.Verbs) == 0) {
		errs = append(errs, errors.New("Reviews.Ask, Reviews.Verbs: Required value"))
	}
	if o.MaxAge <= 0 {
		errs = append(errs, fmt.Errorf("MaxAge: Invalid value: %s: must be positive", o.MaxAge))
	}
	if o.Changed == nil || o.Renewed == nil {
		errs = append(errs, errors.New("Changed, Renewed: Required value"))
	}
	return errors.Join(errs...)
}

// Tracker tracks what volumes may show. All methods are safe for concurrent use.
//
// mu guards what is below it, and is never held over a call of another package but the queue's. The
// goroutines are the workers of Run, which end with its context, and the questions under way, each of which ends
// when nobody waits for it.
type Tracker struct {
	opts  Options
	queue workqueue.TypedDelayingInterface[task]

	mu       sync.Mutex
	consents map[right]*consent
}

// task is what a worker does: it reviews a right or, with a registration, the token that its pod has
// been given.
type task struct {
	right right
	token *Registration
}

// New returns a Tracker of no volume. It fails if opts are not valid.
func New(opts Options) (*Tracker, error) {
	if err := opts.validate(); err != nil {
		return nil, fmt.Errorf("access options: %w", err)
	}
	return &Tracker{
		opts:     opts,
		queue:    workqueue.NewTypedDelayingQueue[task](),
		consents: map[right]*consent{},
	}, nil
}

// Run asks until ctx ends, and returns when its goroutines have. It is called once.
func (t *Tracker) Run(ctx context.Context) {
	var running sync.WaitGroup
	for range workers {
		running.Go(func() {
			for t.askNext(ctx) {
			}
		})
	}
	<-ctx.Done()
	t.queue.ShutDown()
	running.Wait()
}

// Close ends the queue of a Tracker whose Run was never called. It is idempotent.
func (t *Tracker) Close() { t.queue.ShutDown() }

// askNext takes one question off the queue; it returns false once the queue has shut down.
func (t *Tracker) askNext(ctx context.Context) bool {
	next, shutdown := t.queue.Get()
	if shutdown {
		return false
	}
	defer t.queue.Done(next)
	if next.token != nil {
		t.proveOffered(ctx, next.token)
	} else {
		t.review(ctx, next.right)
	}
	return true
}

// forPod returns ctx with a logger that names a pod.
func forPod(ctx context.Context, pod volume.Pod) context.Context {
	return klog.NewContext(ctx, klog.FromContext(ctx).WithValues("pod", klog.KRef(pod.Namespace, pod.Name)))
}

// guarded calls ask. A panic is an error: in a worker nobody else would catch it. What the
// panic carried is not repeated, since it could hold a value; the stack holds none. The logger of
// ctx names the pod.
func guarded(ctx context.Context, ask func() (bool, error)) (yes bool, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			klog.FromContext(ctx).Error(nil, "A question to the API server panicked", "panicType", fmt.Sprintf("%T", cause), "stack", string(debug.Stack()))
			yes, err = false, errPanicked
		}
	}()
	return ask()
}
