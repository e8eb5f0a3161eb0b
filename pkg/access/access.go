// Package access answers whether a service account has a right to an object. It asks by access reviews and remembers the answers for a
// while.
//
// It owns when the API server is asked, how old an answer may be, and the confirmation of a refusal. No call waits for the network: what is
// not known is asked in the background, and the caller is notified of the answer. An answer belongs to an account and an object, and all
// volumes of both share it. The package must not know what a volume does with an answer.
package access

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime/debug"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/refvol/refvol/pkg/authz"
	"github.com/refvol/refvol/pkg/question"
	"github.com/refvol/refvol/pkg/requests"
	"github.com/refvol/refvol/pkg/volume"
)

const (
	// admitAge is how old a yes may be when a new volume relies on it. It is long enough for the pods of a rollout to share an answer.
	admitAge = 5 * time.Second
	// refusalTime is the delay before a refusal is confirmed by a second question, for a mounted volume. An API server that has just
	// started refuses everybody until it has read the roles, and one of several servers may lag.
	refusalTime = 5 * time.Second
	// questionTimeout limits one question, including the time that package requests delays it, but not the wait for one of the pod's
	// places.
	questionTimeout = 10 * time.Second
	// unusedAges is how many times Options.MaxAge an unused answer is kept. The publisher calls Recheck again after at most four: its
	// first resync comes up to two intervals after the publish, and MaxAge is half an interval. Without the old answer, a change would
	// wait for a new one.
	unusedAges = 4
	// questionsAtOnce limits the questions of one pod that are in flight, so that no pod delays the others for long.
	questionsAtOnce = 8
)

// ErrPending says that it is not known yet whether an account has a right, because a question is in flight.
var ErrPending = errors.New("access is under review")

// errPanicked reports a panic during a question.
var errPanicked = errors.New("the plugin panicked; its log has the stack")

// Verdict says what is known about a right.
type Verdict int

// The verdicts.
const (
	// Unknown: nothing has been answered yet, or the last question failed.
	Unknown Verdict = iota
	// Allowed: the account has the right.
	Allowed
	// Suspected: the last answer was no, but it may come from a server that has just started.
	Suspected
	// Refused: the account does not have the right.
	Refused
)

// Reviews says how rights are reviewed. Both fields are required.
type Reviews struct {
	// Ask asks the API server.
	Ask authz.Ask
	// Verbs are the rights to each object that a new volume's pod must have. While the volume is mounted, it must keep the last one.
	Verbs []string
}

// Options are the options of an Access. All are required.
type Options struct {
	Reviews
	// MaxAge is how old an answer may be when a mounted volume relies on it.
	MaxAge time.Duration
	// Changed is called after each answer, and when a failed question may be asked again. It must not block.
	Changed func(volume.ServiceAccount, volume.Ref)
}

// right is what a question is about: a service account's verb on an object. proof is the UID of the pod whose own token is sent with the
// question, or "".
type right struct {
	account volume.ServiceAccount
	ref     volume.Ref
	verb    string
	proof   types.UID
}

// answer is what is known about a right. Access.mu guards it.
type answer struct {
	question.Question[bool]
	// refused means that a no was confirmed. It is valid until a yes. suspectedAt is when the first, unconfirmed no came; zero for none.
	refused     bool
	suspectedAt time.Time
	// usedAt is when somebody last asked for it. isMounted means that a mounted volume relies on it.
	usedAt    time.Time
	isMounted bool
}

// Access is safe for concurrent use. mu guards the fields below it, and the answers. Each question has a goroutine. Run and Close end them.
type Access struct {
	opts Options

	mu      sync.Mutex
	answers map[right]*answer
	// pods has the places of each pod that has questions.
	pods    map[types.UID]*places
	closed  bool
	running sync.WaitGroup
}

// places limit the questions of a pod. Access.mu guards users.
type places struct {
	taken chan struct{}
	users int
}

// New returns an Access without answers. It fails if an option is missing.
func New(opts Options) (*Access, error) {
	if opts.Ask == nil || len(opts.Verbs) == 0 || opts.MaxAge <= 0 || opts.Changed == nil {
		return nil, errors.New("access options: Ask, Verbs, MaxAge, Changed: Required value")
	}
	return &Access{opts: opts, answers: map[right]*answer{}, pods: map[types.UID]*places{}}, nil
}

// Run forgets unused answers until ctx ends. Then it calls Close.
func (a *Access) Run(ctx context.Context) {
	ticker := time.NewTicker(a.opts.MaxAge)
	defer ticker.Stop()
	for {
		select {
		case now := <-ticker.C:
			a.forget(now.Add(-(unusedAges*a.opts.MaxAge + admitAge)))
		case <-ctx.Done():
			a.Close()
			return
		}
	}
}

func (a *Access) forget(before time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	maps.DeleteFunc(a.answers, func(_ right, x *answer) bool { return !x.IsInFlight() && x.usedAt.Before(before) })
}

// Close cancels all questions and waits for their end. No question starts afterwards. It is idempotent.
func (a *Access) Close() {
	a.mu.Lock()
	a.closed = true
	for _, x := range a.answers {
		x.Cancel()
	}
	a.mu.Unlock()
	a.running.Wait()
}

// Admit returns whether the pod of a new volume has all rights to an object. began is when its publish began. A yes counts if it is at most
// 5 seconds old, a no if its question was sent after began. Unknown comes with the reason: ErrPending, or the error of a question.
func (a *Access) Admit(pod volume.Pod, ref volume.Ref, began time.Time) (Verdict, error) {
	return a.admit(pod, ref, began, volume.Token{}, a.opts.Verbs...)
}

// Prove is like Admit, but it asks one question, about the first of the rights, with the token. An answer proves that the API server
// accepts the token.
func (a *Access) Prove(pod volume.Pod, ref volume.Ref, began time.Time, token volume.Token) (Verdict, error) {
	return a.admit(pod, ref, began, token, a.opts.Verbs[0])
}

func (a *Access) admit(pod volume.Pod, ref volume.Ref, began time.Time, token volume.Token, verbs ...string) (Verdict, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	verdict, why := Allowed, error(nil)
	for _, verb := range verbs { // all are asked together
		k := right{account: pod.Account(), ref: ref, verb: verb}
		if token.Reveal() != "" {
			k.proof = pod.UID
		}
		x := a.answer(k)
		switch last := x.Last(); {
		case last.IsKnown() && !last.Value && !last.AskedAt.Before(began):
			return Refused, nil
		case last.Value && time.Since(last.CameAt) < admitAge:
			continue
		}
		a.startQuestion(k, x, pod, token, true)
		if verdict = Unknown; !errors.Is(why, ErrPending) {
			why = cmp.Or(x.Err(), ErrPending)
		}
	}
	return verdict, why
}

// Recheck returns whether the pod of a mounted volume still has its right to an object. A yes that is older than Options.MaxAge is asked
// again. It counts until that question has failed, but only for a mounted volume. A no is Suspected until it is confirmed, and then counts
// until a yes comes. Unknown and Suspected come with the reason, as with Admit.
func (a *Access) Recheck(pod volume.Pod, ref volume.Ref, mounted bool) (Verdict, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	k := a.recheckRight(pod.Account(), ref)
	x := a.answer(k)
	x.isMounted = true
	never, old := !x.Last().IsKnown(), time.Since(x.Last().CameAt) >= a.opts.MaxAge
	if never || old || x.isUnconfirmed() && time.Since(x.suspectedAt) >= refusalTime {
		a.startQuestion(k, x, pod, volume.Token{}, false)
	}
	switch {
	case x.refused:
		return Refused, nil
	case x.isUnconfirmed():
		return Suspected, cmp.Or(x.Err(), ErrPending)
	case never, old && (x.Err() != nil || !mounted):
		return Unknown, cmp.Or(x.Err(), ErrPending)
	}
	return Allowed, nil
}

// isUnconfirmed reports whether the last answer is a no that is not confirmed.
func (x *answer) isUnconfirmed() bool { return x.Last().IsKnown() && !x.Last().Value && !x.refused }

func (a *Access) recheckRight(account volume.ServiceAccount, ref volume.Ref) right {
	return right{account: account, ref: ref, verb: a.opts.Verbs[len(a.opts.Verbs)-1]}
}

// HasPending reports whether a question of Recheck about any of refs is in flight. Changed is called after its answer.
func (a *Access) HasPending(account volume.ServiceAccount, refs map[volume.Ref]bool) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for ref := range refs {
		if x := a.answers[a.recheckRight(account, ref)]; x != nil && x.IsInFlight() {
			return true
		}
	}
	return false
}

// OnNewCredential says that an account has another credential: failed questions may be asked again at once.
func (a *Access) OnNewCredential(account volume.ServiceAccount) {
	var failed []volume.Ref
	a.mu.Lock()
	for k, x := range a.answers {
		if k.account == account && x.Err() != nil {
			x.EndPause()
			failed = append(failed, k.ref)
		}
	}
	a.mu.Unlock()
	for _, ref := range failed {
		a.opts.Changed(account, ref)
	}
}

// answer returns what is known about a right, and marks it as used. The caller holds mu.
func (a *Access) answer(k right) *answer {
	x := a.answers[k]
	if x == nil {
		x = &answer{Question: question.New[bool](wait.Backoff{Duration: 500 * time.Millisecond, Factor: 2, Jitter: 1, Steps: 10, Cap: 15 * time.Second})}
		a.answers[k] = x
	}
	x.usedAt = time.Now()
	return x
}

// startQuestion sends a question, unless one is in flight or has just failed. The caller holds mu.
func (a *Access) startQuestion(k right, x *answer, pod volume.Pod, token volume.Token, urgent bool) {
	if a.closed || !x.IsDue() {
		return
	}
	ctx := klog.NewContext(context.Background(), klog.Background().WithValues("pod", klog.KRef(pod.Namespace, pod.Name)))
	ctx = x.Begin(ctx, requests.Meta{Urgent: urgent, For: requests.For(pod.UID)})
	p := a.pods[pod.UID]
	if p == nil {
		p = &places{taken: make(chan struct{}, questionsAtOnce)}
		a.pods[pod.UID] = p
	}
	p.users++
	a.running.Go(func() {
		yes, err := a.send(ctx, k, p, token)
		a.recordResult(k, x, yes, err)
		a.releasePlaces(pod.UID, p)
		a.opts.Changed(k.account, k.ref)
	})
}

// send waits for one of the pod's places and sends a question.
func (a *Access) send(ctx context.Context, k right, p *places, token volume.Token) (yes bool, err error) {
	select {
	case p.taken <- struct{}{}:
		defer func() { <-p.taken }()
	case <-ctx.Done():
		return false, ctx.Err()
	}
	ctx, cancel := context.WithTimeout(ctx, questionTimeout)
	defer cancel()
	return askSafely(ctx, func() (bool, error) { return a.opts.Ask(ctx, k.account, k.ref, k.verb, token) })
}

// recordResult stores the result of a question. A failure does not change the last answer. But it discards an unconfirmed no: after an
// outage, the next no may come from a server that has just started.
func (a *Access) recordResult(k right, x *answer, yes bool, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err != nil {
		x.suspectedAt = time.Time{}
		time.AfterFunc(x.Fail(err, 0), func() { a.opts.Changed(k.account, k.ref) })
		return
	}
	x.Answer(yes)
	a.evaluate(k, x)
	if k.proof != "" { // it is also an answer about the account
		k.proof = ""
		of := a.answer(k)
		of.Adopt(x.Last())
		a.evaluate(k, of)
	}
}

// evaluate evaluates the last answer. A no counts when a question that was asked refusalTime later confirms it. The caller holds mu.
func (a *Access) evaluate(k right, x *answer) {
	switch {
	case x.Last().Value:
		x.refused, x.suspectedAt = false, time.Time{}
	case x.refused:
	case x.suspectedAt.IsZero():
		x.suspectedAt = x.Last().CameAt
		time.AfterFunc(refusalTime, func() { a.confirm(k) })
	case x.Last().AskedAt.Sub(x.suspectedAt) >= refusalTime:
		x.refused, x.suspectedAt = true, time.Time{}
	}
}

// confirm asks again after a no, if a mounted volume relies on it.
func (a *Access) confirm(k right) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if x := a.answers[k]; x != nil && x.isMounted && !x.suspectedAt.IsZero() && time.Since(x.suspectedAt) >= refusalTime {
		a.startQuestion(k, x, volume.Pod{Namespace: k.account.Namespace}, volume.Token{}, false)
	}
}

// releasePlaces releases the pod's places after a question.
func (a *Access) releasePlaces(uid types.UID, p *places) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if p.users--; p.users == 0 {
		delete(a.pods, uid)
	}
}

// askSafely calls ask and turns a panic into an error, because no caller recovers. The panic's value is not logged, because it could hold
// an object's value. The stack holds none. The logger of ctx names the pod.
func askSafely(ctx context.Context, ask func() (bool, error)) (yes bool, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			klog.FromContext(ctx).Error(nil, "A question to the API server panicked", "panicType", fmt.Sprintf("%T", cause), "stack", string(debug.Stack()))
			yes, err = false, errPanicked
		}
	}()
	return ask()
}
