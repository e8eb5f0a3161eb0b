package check

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/refvol/refvol/pkg/authz"
	"github.com/refvol/refvol/pkg/volume"
)

// Cluster answers questions that need an API server.
type Cluster interface {
	// Lookup returns whether an object exists and which keys it has. If the caller may not read the object, Exists is Unknown and the error
	// nil.
	Lookup(ctx context.Context, ref volume.Ref) (Object, error)
	// CanI returns whether a service account has the right to a verb on an object. If the caller may not ask, the answer is Unknown and the
	// error nil.
	CanI(ctx context.Context, account volume.ServiceAccount, ref volume.Ref, verb string) (Answer, error)
	// Text returns the value of a key. It returns nil if there is none, or if the caller may not read it. The value is not kept.
	Text(ctx context.Context, ref volume.Ref, key string) ([]byte, error)
}

// Object is what is kept of an object. It never holds a value.
type Object struct {
	Exists Answer
	// Data and BinaryData are the keys in each of these fields.
	Data, BinaryData sets.Set[string]
	// Revision is the annotation volume.RevisionAnnotation, and Canary says for which share of the pods the object exists as a canary.
	Revision volume.Revision
	Canary   string
	// sizes has the length of each key's value in bytes.
	sizes map[string]int64
}

// right is a question about an account's right.
type right struct {
	account volume.ServiceAccount
	ref     volume.Ref
	verb    string
}

// cached returns a known answer, or asks and remembers the answer.
func cached[K comparable, V any](known map[K]V, key K, ask func() (V, error)) (V, error) {
	if answer, ok := known[key]; ok {
		return answer, nil
	}
	answer, err := ask()
	if err == nil {
		known[key] = answer
	}
	return answer, err
}

// setAnswers sets the cluster's answers for each reference, and adds problems that prevent a pod from starting.
func (c *Checker) setAnswers(ctx context.Context, w *Workload) error {
	for i := range w.References {
		r := &w.References[i]
		ref := r.ref()
		object, err := cached(c.objects, ref, func() (Object, error) { return c.opts.Cluster.Lookup(ctx, ref) })
		if err != nil {
			return fmt.Errorf("get %s: %w", ref, err)
		}
		if r.Exists = object.Exists; r.Exists == Yes {
			r.MissingKeys = object.missing(r.Keys, r.env)
			if r.Canary {
				r.Share = object.Canary
			}
		}
		if !r.Optional {
			if r.Exists == No {
				c.problem(w.Location, r.Field, fmt.Sprintf("%s does not exist", ref))
			}
			for _, key := range r.MissingKeys {
				c.problem(w.Location, r.Field, fmt.Sprintf("%s has no key %q", ref, key))
			}
		}
		if err := c.checkRights(ctx, w, r, ref); err != nil {
			return err
		}
	}
	return nil
}

const verbGet = "get"

// checkRights adds problems for the rights that the pod's service account lacks. With --identity=pod it needs rights to every object that a
// volume shows, otherwise only to objects of other namespaces.
func (c *Checker) checkRights(ctx context.Context, w *Workload, r *Reference, ref volume.Ref) error {
	var verbs []string
	switch {
	case r.Refvol && len(c.opts.PodVerbs) > 0:
		verbs = c.opts.PodVerbs
	case r.Namespace != w.Namespace:
		verbs = []string{verbGet}
	default:
		r.MayGet = NotNeeded
		if r.Refvol && c.opts.AnyIdentity {
			return c.checkRightsAsPod(ctx, w, r, ref)
		}
	}
	lacking, err := c.missingRights(ctx, w, ref, verbs, func(answer Answer) { r.MayGet = answer })
	if err != nil {
		return err
	}
	if len(lacking) > 0 {
		c.problem(w.Location, r.Field, fmt.Sprintf("service account %s/%s may not %s %s", w.Namespace, w.ServiceAccount, strings.Join(lacking, ", "), ref))
	}
	return nil
}

// checkRightsAsPod adds a warning for the rights that a pod's service account would need with --identity=pod.
func (c *Checker) checkRightsAsPod(ctx context.Context, w *Workload, r *Reference, ref volume.Ref) error {
	lacking, err := c.missingRights(ctx, w, ref, authz.PodVerbs(true), func(Answer) {})
	if err == nil && len(lacking) > 0 {
		c.warning(w.Location, r.Field, fmt.Sprintf("service account %s/%s may not %s %s, which --identity=pod of the plugin needs (no --identity was given)",
			w.Namespace, w.ServiceAccount, strings.Join(lacking, ", "), ref))
	}
	return err
}

// missingRights returns those verbs that a pod's service account may not use. get is called with the answer for the verb get.
func (c *Checker) missingRights(ctx context.Context, w *Workload, ref volume.Ref, verbs []string, get func(Answer)) (lacking []string, err error) {
	account := volume.ServiceAccount{Namespace: w.Namespace, Name: w.ServiceAccount}
	for _, verb := range verbs {
		answer, err := cached(c.rights, right{account, ref, verb}, func() (Answer, error) { return c.opts.Cluster.CanI(ctx, account, ref, verb) })
		if err != nil {
			return nil, fmt.Errorf("ask whether service account %s/%s may %s %s: %w", account.Namespace, account.Name, verb, ref, err)
		}
		if verb == verbGet {
			get(answer)
		}
		if answer == No {
			lacking = append(lacking, verb)
		}
	}
	return lacking, nil
}

// missing returns those of some keys that an object lacks. An environment does not use binaryData.
func (o *Object) missing(keys []string, env bool) []string {
	missing := []string{}
	for _, key := range keys {
		if !o.Data.Has(key) && (env || !o.BinaryData.Has(key)) && !slices.Contains(missing, key) {
			missing = append(missing, key)
		}
	}
	return missing
}
