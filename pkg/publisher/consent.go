package publisher

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/refvol/refvol/pkg/access"
	"github.com/refvol/refvol/pkg/authz"
	"github.com/refvol/refvol/pkg/volume"
)

// errUnreviewed reports that a pod's right to an object is not known: no question about it was answered.
var errUnreviewed = errors.New("access could not be reviewed")

// refusedError names the objects that a pod may not have. Its text does not tell whether they exist.
type refusedError struct{ text string }

func (e *refusedError) Error() string { return e.text }

// leastAdmit is how long a pod's rights may be reviewed where a publish may not wait.
const leastAdmit = 15 * time.Second

// authorize returns nil once the pod of a new volume may have all its objects that it needs a right to. A refusal is
// final, and has the same text whether the object exists or not: nothing was asked of it yet. An error of a review is no
// refusal; it is asked again for as long as a publish may wait.
func (v *published) authorize(ctx context.Context) error {
	if len(v.consents) == 0 {
		return nil
	}
	ctx, cancel := v.p.waiting(ctx, time.Now().Add(max(time.Until(v.deadline), leastAdmit)))
	defer cancel()
	for began := time.Now(); ; {
		err := v.admit(began)
		if o := outcomeOf(err); err == nil || !o.waits {
			return o.failure()
		}
		select {
		case <-v.wake: // each answer does that
		case <-ctx.Done():
			return fail(ReasonUnavailable, "%w", err)
		}
	}
}

// admit returns nil if the pod of a new volume, whose publish began at a time, may have all its objects. It asks for what
// is not known. All answers are waited for, so that a refusal names all objects.
func (v *published) admit(began time.Time) error {
	if err := v.prove(began); err != nil {
		return err
	}
	refused, pending := map[volume.Ref]bool{}, error(nil)
	var errs []error
	for _, use := range v.consents {
		verdict, err := access.Refused, error(nil)
		if !v.isSwitchedOff(use.Ref) {
			verdict, err = v.p.access.Admit(v.request.Pod, use.Ref, began)
		}
		switch {
		case verdict == access.Refused:
			refused[use.Ref] = true
		case errors.Is(err, access.ErrPending):
			pending = err
		case err != nil:
			errs = append(errs, err)
		}
	}
	switch {
	case pending != nil:
		return pending
	case len(refused) > 0:
		return v.refusal(refused)
	}
	return unreviewed(errors.Join(errs...))
}

// unreviewed returns why a right is not known, nil for nil.
func unreviewed(err error) error {
	if err == nil || errors.Is(err, access.ErrPending) {
		return err
	}
	return fmt.Errorf("%w: %w", errUnreviewed, err)
}

// prove sees to it that the pod is of the account which its request names, where objects are read with pods' tokens. What
// a request says of a pod is not enough where objects are shared by all pods of an account: without podInfoOnMount it is
// what the pod's author wrote, and without tokenRequests the token is. So a question is sent with that very token, and
// its answer has it used.
func (v *published) prove(began time.Time) error {
	if v.p.opts.Identity == nil || len(v.consents) == 0 {
		return nil
	}
	v.p.mu.Lock()
	token, proven := v.token, v.proven
	v.p.mu.Unlock()
	switch {
	case proven:
		return nil
	case token.Reveal() == "":
		return unreviewed(fmt.Errorf("service account %s: %w", v.request.Pod.Account(), authz.ErrNoToken))
	}
	if err := v.p.opts.Identity.Check(v.request.Pod, token); err != nil {
		return &deniedError{err: err}
	}
	verdict, err := v.p.access.Prove(v.request.Pod, v.consents[0].Ref, began, token)
	if apierrors.IsUnauthorized(err) {
		err = fmt.Errorf("the API server does not accept the token of pod %s (it may have expired; the kubelet brings another one): %w", v.request.Pod, err)
	}
	if verdict == access.Unknown {
		return unreviewed(err)
	}
	v.use(token)
	return nil
}

// offer takes the token that a republish brought. It can't fail: without a new one the volume goes on with the one before.
func (v *published) offer(token volume.Token) error {
	identity := v.p.opts.Identity
	if identity == nil || len(v.consents) == 0 || token.Reveal() == "" {
		return nil
	}
	v.p.mu.Lock()
	known, proven := v.token.Same(token), v.proven
	v.token = token
	v.p.mu.Unlock()
	if known && proven {
		return nil
	}
	if err := identity.Check(v.request.Pod, token); err != nil {
		return err
	}
	if proven {
		v.use(token)
	}
	v.notify()
	v.p.requeue(v, time.Now())
	return nil
}

// use has a token used for requests of the pod's account. Where there was none, whatever waited for one goes on.
func (v *published) use(token volume.Token) {
	account := v.request.Pod.Account()
	first := v.p.opts.Identity.Put(v.request.Pod, v.request.VolumeID, token)
	v.p.mu.Lock()
	v.proven = true
	released := v.released
	v.p.mu.Unlock()
	if released {
		v.p.opts.Identity.Drop(v.request.Pod, v.request.VolumeID)
		return
	}
	v.p.opts.Objects.Renewed(account)
	v.p.access.Renewed(account)
	if first {
		v.p.resyncAccount(account)
	}
}

// mayKeep returns whether the pod of a mounted volume may have an object, by answers of half a resync.
func (v *published) mayKeep(ref volume.Ref) (access.Verdict, error) {
	if !v.consent[ref] {
		return access.Allowed, nil
	}
	if v.isSwitchedOff(ref) {
		return access.Refused, nil
	}
	verdict, err := v.p.access.Keeps(v.request.Pod, ref, !v.is(publishing))
	return verdict, unreviewed(err)
}

// isSwitchedOff says whether an object is of another namespace and these were switched off since the publish.
func (v *published) isSwitchedOff(ref volume.Ref) bool {
	return !v.p.opts.CrossNamespace && ref.Namespace != v.request.Pod.Namespace
}

// refusal returns an error that names refused objects, nil if there is none.
func (v *published) refusal(refused map[volume.Ref]bool) error {
	if len(refused) == 0 {
		return nil
	}
	needs := "get" // where reviews were switched off since the publish, nobody is asked
	if v.p.opts.Reviews != nil {
		needs = authz.Phrase(v.p.opts.Reviews.Verbs)
	}
	var texts []string
	for _, use := range v.consents {
		if !refused[use.Ref] {
			continue
		}
		if len(texts) == fewNames {
			texts = append(texts, fmt.Sprintf("and %d more of the objects that it names", len(refused)-fewNames))
			break
		}
		if v.isSwitchedOff(use.Ref) {
			texts = append(texts, fmt.Sprintf("%s: Forbidden: this node shows no objects of other namespaces (its plugin runs without --cross-namespace)", use.Field))
			continue
		}
		texts = append(texts, fmt.Sprintf("%s: Forbidden: service account %q of the pod may not %s %s; whoever owns namespace %q consents by a Role and a RoleBinding there",
			use.Field, v.request.Pod.ServiceAccount, needs, use.Ref, use.Ref.Namespace))
	}
	return &refusedError{strings.Join(texts, "; ")}
}

// register has the objects read that the pod may have: of the others nothing is asked.
func (v *published) register(may []volume.Ref) {
	if slices.Equal(may, v.registered) {
		return
	}
	v.registered = may
	v.p.opts.Objects.RegisterPod(v.request.Pod, v.request.VolumeID, may)
	if v.is(publishing) {
		v.p.opts.Objects.Prioritize(v.request.Pod, may)
	}
}
