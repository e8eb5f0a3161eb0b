package check

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/refvol/refvol/pkg/volume"
)

// Cluster answers what only an API server knows.
type Cluster interface {
	// Lookup says whether an object exists and what keys it has. The answer is Unknown,
	// not an error, where the caller may not read the object.
	Lookup(ctx context.Context, ref volume.Ref) (Object, error)
	// MayGet says whether a service account may get an object. The answer is Unknown,
	// not an error, where the caller may not ask.
	MayGet(ctx context.Context, account Account, ref volume.Ref) (Answer, error)
}

// Object is what is kept of an object: never a value.
type Object struct {
	Exists Answer
	// Data and BinaryData are the keys under either.
	Data, BinaryData sets.Set[string]
}

// Account is a service account.
type Account struct{ Namespace, Name string }

// live asks a cluster each question once.
type live struct {
	cluster Cluster
	objects map[volume.Ref]Object
	rights  map[right]Answer
}

type right struct {
	account Account
	ref     volume.Ref
}

func newLive(cluster Cluster) *live {
	return &live{cluster: cluster, objects: map[volume.Ref]Object{}, rights: map[right]Answer{}}
}

func (l *live) lookup(ctx context.Context, ref volume.Ref) (Object, error) {
	object, ok := l.objects[ref]
	if ok {
		return object, nil
	}
	object, err := l.cluster.Lookup(ctx, ref)
	if err != nil {
		return Object{}, fmt.Errorf("get %s: %w", ref, err)
	}
	l.objects[ref] = object
	return object, nil
}

func (l *live) mayGet(ctx context.Context, account Account, ref volume.Ref) (Answer, error) {
	key := right{account, ref}
	answer, ok := l.rights[key]
	if ok {
		return answer, nil
	}
	answer, err := l.cluster.MayGet(ctx, account, ref)
	if err != nil {
		return Unknown, fmt.Errorf("ask whether service account %s/%s may get %s: %w", account.Namespace, account.Name, ref, err)
	}
	l.rights[key] = answer
	return answer, nil
}

// ask fills in what the cluster says of each reference, and adds what is wrong.
func (c *Checker) ask(ctx context.Context, w *Workload) error {
	account := Account{w.Namespace, w.ServiceAccount}
	for i := range w.References {
		r := &w.References[i]
		ref := volume.Ref{Kind: volume.Kind(r.Kind), Namespace: r.Namespace, Name: r.Name}
		object, err := c.live.lookup(ctx, ref)
		if err != nil {
			return err
		}
		if r.MayGet, err = c.live.mayGet(ctx, account, ref); err != nil {
			return err
		}
		r.Exists = object.Exists
		if r.Exists == Yes {
			r.MissingKeys = object.missing(r.Keys, r.env)
		}
		c.judge(w, r, ref)
	}
	return nil
}

// judge adds what keeps a pod from starting.
func (c *Checker) judge(w *Workload, r *Reference, ref volume.Ref) {
	if r.Exists == No && !r.Optional {
		c.problem(w.Place, r.Field, fmt.Sprintf("%s does not exist", ref))
	}
	if !r.Optional {
		for _, key := range r.MissingKeys {
			c.problem(w.Place, r.Field, fmt.Sprintf("%s has no key %q", ref, key))
		}
	}
	// In its own namespace a pod needs no right of its service account.
	if r.MayGet == No && r.Namespace != w.Namespace {
		c.problem(w.Place, r.Field, fmt.Sprintf("service account %s/%s may not get %s", w.Namespace, w.ServiceAccount, ref))
	}
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
