package publisher

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"

	"github.com/refvol/refvol/pkg/access"
	"github.com/refvol/refvol/pkg/authz"
	"github.com/refvol/refvol/pkg/volume"
)

// tokenTime is how long after a restart a volume may be without a token before that counts
// as a fault: the kubelet publishes again within one and a half minutes.
const tokenTime = 3 * time.Minute

// rights are what is known of a pod's rights to what a volume is bound to, and of its token.
type rights struct {
	shared  *shared
	entry   *entry
	request *Request
	spec    *spec
	// isAdmitted says that the pod had all its rights when its publish asked.
	isAdmitted bool
	// token is the last one that a request brought, and isProven says that the pod is of the account that it claims.
	token    volume.Token
	isProven bool
}

// admit returns nil once the pod of a new volume, whose publish began at a time, may have all objects that it needs a right
// to. It asks for what is not known, and all answers are waited for, so that a refusal names all objects. A refusal is
// final, and has the same text whether the object exists or not: nothing was asked of it yet.
func (r *rights) admit(began time.Time) *failure {
	if r.isAdmitted {
		return nil // it may wait for an object for long
	}
	if f := r.prove(began); f != nil {
		return f
	}
	refused, waits := map[volume.Ref]bool{}, error(nil)
	var errs []error
	for _, use := range r.spec.consents {
		verdict, err := access.Refused, error(nil)
		if !r.isSwitchedOff(use.Ref) {
			verdict, err = r.shared.access.Admit(r.request.Pod, use.Ref, began)
		}
		switch {
		case verdict == access.Refused:
			refused[use.Ref] = true
		case errors.Is(err, access.ErrPending):
			waits = err
		case err != nil:
			errs = append(errs, err)
		}
	}
	switch {
	case waits != nil:
		return waiting(waits)
	case len(refused) > 0:
		return r.refusal(refused)
	}
	f := r.unreviewed(errors.Join(errs...))
	r.isAdmitted = f == nil
	return f
}

// unreviewed returns why a right is not known, nil for nil.
func (r *rights) unreviewed(err error) *failure {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, access.ErrPending), errors.Is(err, authz.ErrNoToken) && r.entry.isMounted() && time.Since(r.entry.since) < tokenTime:
		return waiting(err)
	}
	return unreviewed(err)
}

// prove sees to it that the pod is of the account which its request names, where objects are read with pods' tokens. What
// a request says of a pod is not enough where objects are shared by all pods of an account: without podInfoOnMount it is
// what the pod's author wrote, and without tokenRequests the token is. So a question is sent with that very token, and
// its answer has it used.
func (r *rights) prove(began time.Time) *failure {
	identity := r.shared.opts.Identity
	if identity == nil || len(r.spec.consents) == 0 || r.isProven {
		return nil
	}
	pod, token := r.request.Pod, r.token
	if token.Reveal() == "" {
		return r.unreviewed(fmt.Errorf("service account %s: %w", pod.Account(), authz.ErrNoToken))
	}
	if err := identity.Check(pod, token); err != nil {
		return forbidden(err, false)
	}
	verdict, err := r.shared.access.Prove(pod, r.spec.consents[0].Ref, began, token)
	if apierrors.IsUnauthorized(err) {
		err = fmt.Errorf("the API server does not accept the token of pod %s (it may have expired; the kubelet brings another one): %w", pod, err)
	}
	if verdict == access.Unknown {
		return r.unreviewed(err)
	}
	r.use(token)
	return nil
}

// offer takes the token that a republish brought. It can't fail: without a new one the volume goes on with the one before.
func (r *rights) offer(ctx context.Context, request *Request) {
	r.request = request
	identity := r.shared.opts.Identity
	if identity == nil || len(r.spec.consents) == 0 || request.Token.Reveal() == "" || request.Token.Same(r.token) {
		return
	}
	r.token = request.Token
	if !r.isProven {
		return // what comes next proves it
	}
	if err := identity.Check(request.Pod, request.Token); err != nil {
		klog.FromContext(ctx).Error(err, "The token of a republish is not used")
		return
	}
	r.use(request.Token)
}

// use has a token used for requests of the pod's account. Whatever waited for one goes on.
func (r *rights) use(token volume.Token) {
	account := r.request.Pod.Account()
	r.shared.opts.Identity.Put(r.request.Pod, r.entry.id, token)
	r.isProven = true
	r.shared.opts.Objects.Renewed(account)
	r.shared.access.Renewed(account)
}

// mayKeep returns whether the pod of a mounted volume may have an object, by answers of half a resync. Unknown and Suspected
// come with the reason.
func (r *rights) mayKeep(ref volume.Ref) (access.Verdict, *failure) {
	if !r.spec.consent[ref] {
		return access.Allowed, nil
	}
	if r.isSwitchedOff(ref) {
		return access.Refused, nil
	}
	verdict, err := r.shared.access.Keeps(r.request.Pod, ref, r.entry.isMounted())
	return verdict, r.unreviewed(err)
}

// isSwitchedOff says whether an object is of another namespace and these were switched off since the publish.
func (r *rights) isSwitchedOff(ref volume.Ref) bool {
	return !r.shared.opts.CrossNamespace && ref.Namespace != r.request.Pod.Namespace
}

// refusal names refused objects, nil if there is none. Its text does not say whether they exist.
func (r *rights) refusal(refused map[volume.Ref]bool) *failure {
	if len(refused) == 0 {
		return nil
	}
	needs := "get" // where reviews were switched off since the publish, nobody is asked
	if r.shared.opts.Reviews != nil {
		needs = authz.Phrase(r.shared.opts.Reviews.Verbs)
	}
	var texts []string
	for _, use := range r.spec.consents {
		if !refused[use.Ref] {
			continue
		}
		if len(texts) == fewNames {
			texts = append(texts, fmt.Sprintf("and %d more of the objects that it names", len(refused)-fewNames))
			break
		}
		if r.isSwitchedOff(use.Ref) {
			texts = append(texts, fmt.Sprintf("%s: Forbidden: this node shows no objects of other namespaces (its plugin runs without --cross-namespace)", use.Field))
			continue
		}
		texts = append(texts, fmt.Sprintf("%s: Forbidden: service account %q of the pod may not %s %s; whoever owns namespace %q consents by a Role and a RoleBinding there",
			use.Field, r.request.Pod.ServiceAccount, needs, use.Ref, use.Ref.Namespace))
	}
	f := forbidden(errors.New(strings.Join(texts, "; ")), false)
	f.kind = f.Error()
	return f
}
