package check

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/refvol/refvol/pkg/volume"
)

// Cluster answers what only an API server knows.
type Cluster interface {
	// Lookup says whether an object exists and which keys it has. If the caller may not read
	// the object, the answer is Unknown and the error nil.
	Lookup(ctx context.Context, ref volume.Ref) (Object, error)
	// CanI says whether a service account has the right to a verb on an object. If the caller
	// may not ask, the answer is Unknown and the error nil.
	CanI(ctx context.Context, account volume.ServiceAccount, ref volume.Ref, verb string) (Answer, error)
}

// Object is what is kept of an object: never a value.
type Object struct {
	Exists Answer
	// Data and BinaryData are the keys under either.
	Data, BinaryData sets.Set[string]
}

// live asks a cluster each question once.
type live struct {
	cluster Cluster
	objects map[volume.Ref]Object
	rights  map[right]Answer
}

type right struct {
	account volume.ServiceAccount
	ref     volume.Ref
	verb    string
}

func newLive(cluster Cluster) *live {
	return &live{cluster: cluster, objects: map[volume.Ref]Object{}, rights: map[right]Answer{}}
}

func (l *live) lookup(ctx context.Context, ref volume.Ref) (Object, error) {
	return once(l.objects, ref, func() (Object, error) {
		object, err := l.cluster.Lookup(ctx, ref)
		if err != nil {
			err = fmt.Errorf("get %s: %w", ref, err)
		}
		return object, err
	})
}

func (l *live) may(ctx context.Context, account volume.ServiceAccount, ref volume.Ref, verb string) (Answer, error) {
	return once(l.rights, right{account, ref, verb}, func() (Answer, error) {
		answer, err := l.cluster.CanI(ctx, account, ref, verb)
		if err != nil {
			err = fmt.Errorf("ask whether service account %s/%s may %s %s: %w", account.Namespace, account.Name, verb, ref, err)
		}
		return answer, err
	})
}

// once asks what is not known yet.
func once[K comparable, V any](known map[K]V, key K, ask func() (V, error)) (V, error) {
	if answer, ok := known[key]; ok {
		return answer, nil
	}
	answer, err := ask()
	if err == nil {
		known[key] = answer
	}
	return answer, err
}

// ask fills in what the cluster says of each reference, and adds what is wrong.
func (c *Checker) ask(ctx context.Context, w *Workload) error {
	for i := range w.References {
		r := &w.References[i]
		ref := volume.Ref{Kind: volume.Kind(r.Kind), Namespace: r.Namespace, Name: r.Name}
		object, err := c.live.lookup(ctx, ref)
		if err != nil {
			return err
		}
		r.Exists = object.Exists
		if r.Exists == Yes {
			r.MissingKeys = object.missing(r.Keys, r.env)
		}
		c.judge(w, r, ref)
		if err := c.judgeRights(ctx, w, r, ref); err != nil {
			return err
		}
	}
	return nil
}

// judge adds problems that keep a pod from starting.
func (c *Checker) judge(w *Workload, r *Reference, ref volume.Ref) {
	if r.Exists == No && !r.Optional {
		c.problem(w.Location, r.Field, fmt.Sprintf("%s does not exist", ref))
	}
	if !r.Optional {
		for _, key := range r.MissingKeys {
			c.problem(w.Location, r.Field, fmt.Sprintf("%s has no key %q", ref, key))
		}
	}
}

const verbGet = "get"

// judgeRights adds the rights that the pod's service account lacks. With pod identity it needs
// rights to every object that a volume shows, else only to those of other namespaces.
func (c *Checker) judgeRights(ctx context.Context, w *Workload, r *Reference, ref volume.Ref) error {
	var verbs []string
	switch {
	case r.Refvol && len(c.opts.PodVerbs) > 0:
		verbs = c.opts.PodVerbs
	case r.Namespace != w.Namespace:
		verbs = []string{verbGet}
	default:
		r.MayGet = NotNeeded
	}
	var lacking []string
	for _, verb := range verbs {
		answer, err := c.live.may(ctx, volume.ServiceAccount{Namespace: w.Namespace, Name: w.ServiceAccount}, ref, verb)
		if err != nil {
			return err
		}
		if verb == verbGet {
			r.MayGet = answer
		}
		if answer == No {
			lacking = append(lacking, verb)
		}
	}
	if len(lacking) > 0 {
		c.problem(w.Location, r.Field, fmt.Sprintf("service account %s/%s may not %s %s", w.Namespace, w.ServiceAccount, strings.Join(lacking, ", "), ref))
	}
	return nil
}

// missing returns those of some keys that an object lacks. An environment takes nothing
// from binaryData.
func (o *Object) missing(keys []string, env bool) []string {
	missing := []string{}
	for _, key := range keys {
		if !o.Data.Has(key) && (env || !o.BinaryData.Has(key)) && !slices.Contains(missing, key) {
			missing = append(missing, key)
		}
	}
	return missing
}
