package access

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/refvol/refvol/pkg/volume"
)

// questionsAtOnce is how many of a new volume's objects are asked about at once.
const questionsAtOnce = 8

// Wish is what a volume asks for.
type Wish struct {
	Pod      volume.Pod
	VolumeID string
	// Refs are the objects of the volume.
	Refs []volume.Ref
	// Consents are those that the pod needs a right to, and where the volume's spec first
	// names each.
	Consents []volume.Use
	// Token is the one that the request brought; the zero Token is none. It is not proven yet.
	Token volume.Token
	// Proven says that the pod is known to be who it claims to be, without a token.
	Proven bool
}

// Registration is the objects of one volume, from New until Close.
//
// mu guards what is below it, and is held over calls of Objects and Identity, so that no
// registration outlives a Close.
type Registration struct {
	tracker *Tracker
	opts    Wish
	// needs is the objects of Consents; constant.
	needs map[volume.Ref]bool

	mu sync.Mutex
	// started and closed say how far the registration has come.
	started, closed bool
	// waits says that Pending was true when it was last asked.
	waits bool
	// admitted is when the pod was last found to have all rights; zero for never.
	admitted time.Time
	token    tokenState
}

// New returns a registration that is not started yet.
func (t *Tracker) New(w Wish) *Registration {
	r := &Registration{tracker: t, opts: w, needs: map[volume.Ref]bool{}}
	for _, use := range w.Consents {
		r.needs[use.Ref] = true
	}
	r.token.offered, r.token.proven = w.Token, w.Proven
	r.opts.Token = volume.Token{} // the token state has it for as long as it is of use
	return r
}

func (r *Registration) account() volume.Account { return r.opts.Pod.Account() }

// Admitted says whether Admit would return nil at once.
func (r *Registration) Admitted() bool {
	if len(r.opts.Consents) == 0 {
		return true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return !r.admitted.IsZero() && time.Since(r.admitted) < admitAge
}

// Admit returns nil if the pod of a new volume may have all its objects, by answers that are at
// most admitAge old. A RefusedError or a DeniedError is final. Any other error wraps
// ErrUnreviewed and says nothing about the pod's rights. Call Admit before Start: nothing is
// asked about an object for a pod that has no right to it. It asks until ctx ends: a large volume has
// many questions.
func (r *Registration) Admit(ctx context.Context) error {
	if r.Admitted() {
		return nil
	}
	asked := time.Now()
	if err := r.prove(ctx); err != nil {
		return err
	}
	refused, err := r.reviewAll(ctx)
	if len(refused) > 0 {
		return r.Refusal(refused)
	}
	if err != nil {
		return &unreviewedError{err}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.admitted = asked
	return nil
}

// reviewAll asks for each object that the pod needs a right to, some at a time: a publish
// doesn't wait for ever, and answers don't keep. The error joins why some had no answer.
func (r *Registration) reviewAll(ctx context.Context) (refused map[volume.Ref]bool, err error) {
	allowed, errs := make([]bool, len(r.opts.Consents)), make([]error, len(r.opts.Consents))
	var asking sync.WaitGroup
	slots := make(chan struct{}, questionsAtOnce)
	for i, use := range r.opts.Consents {
		slots <- struct{}{}
		asking.Go(func() {
			defer func() { <-slots }()
			allowed[i], errs[i] = r.hasAllRights(ctx, use.Ref)
		})
	}
	asking.Wait()
	refused = map[volume.Ref]bool{}
	for i, use := range r.opts.Consents {
		if errs[i] == nil && !allowed[i] {
			refused[use.Ref] = true
		}
	}
	return refused, errors.Join(errs...)
}

// hasAllRights asks whether the pod of a new volume has all rights to an object.
func (r *Registration) hasAllRights(ctx context.Context, ref volume.Ref) (bool, error) {
	if r.tracker.switchedOff(r.opts.Pod.Namespace, ref) {
		return false, nil
	}
	for _, verb := range r.tracker.opts.Reviews.Verbs {
		yes, err := r.tracker.ask(ctx, right{r.account(), ref, verb}, admitAge)
		if err != nil || !yes {
			return false, err
		}
	}
	return true, nil
}

// unreviewedError is ErrUnreviewed with its cause.
type unreviewedError struct{ err error }

func (e *unreviewedError) Error() string   { return ErrUnreviewed.Error() + ": " + e.err.Error() }
func (e *unreviewedError) Unwrap() []error { return []error{ErrUnreviewed, e.err} }

// Start has the objects read. It also has the pod's rights to them reviewed, unless the answers are
// new. From then on Get returns answers, and Changed is called when they change.
func (r *Registration) Start() {
	r.mu.Lock()
	r.started = true
	r.mu.Unlock()
	t := r.tracker
	t.mu.Lock()
	for ref := range r.needs {
		k := r.keptRight(ref)
		c := t.consent(k)
		c.needed[r] = struct{}{}
		t.recheck(k, c)
	}
	t.mu.Unlock()
	r.reregister()
	r.checkToken()
}

func (r *Registration) isLive() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.started && !r.closed
}

// reregister has the objects read that are not refused.
func (r *Registration) reregister() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return
	}
	refs := slices.DeleteFunc(slices.Clone(r.opts.Refs), func(ref volume.Ref) bool {
		return r.needs[ref] && r.tracker.isRefused(r.keptRight(ref))
	})
	r.tracker.opts.Objects.RegisterPod(r.opts.Pod, r.opts.VolumeID, refs)
}

// Keep says that the volume is mounted: from now on none of its objects is refused for want of room. It may come
// before Start.
func (r *Registration) Keep() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closed {
		r.tracker.opts.Objects.Keep(r.opts.Pod, r.opts.VolumeID)
	}
}

// Recheck has the pod's rights reviewed again, and tries once more a token that was not accepted.
// A resync calls it. An answer concerns all volumes of the account that need it, so one that has just
// come serves the next volume too: else each of 1,000 volumes would ask for all 1,000.
func (r *Registration) Recheck() {
	if !r.isLive() {
		return
	}
	t := r.tracker
	t.mu.Lock()
	for ref := range r.needs {
		k := r.keptRight(ref)
		if c := t.consents[k]; c != nil {
			t.recheck(k, c)
		}
	}
	t.mu.Unlock()
	r.checkToken()
}

// Close ends the registration. It is idempotent.
func (r *Registration) Close() {
	t := r.tracker
	t.mu.Lock()
	for ref := range r.needs {
		k := r.keptRight(ref)
		if c := t.consents[k]; c != nil {
			delete(c.needed, r)
			t.release(k, c)
		}
	}
	t.mu.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	t.opts.Objects.UnregisterPod(r.opts.Pod, r.opts.VolumeID)
	if t.opts.Identity != nil {
		t.opts.Identity.Drop(r.opts.Pod, r.opts.VolumeID)
	}
}
