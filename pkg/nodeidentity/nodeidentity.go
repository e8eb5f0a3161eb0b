// Package nodeidentity finds out whether the API server lets the plugin read as its node, by
// constrained impersonation, and why not.
//
// It owns the questions about the plugin's own token, rights and pod. It must not know what
// is read as the node, nor for whom.
package nodeidentity

import (
	"context"
	"errors"
	"fmt"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/version"

	"github.com/refvol/refvol/pkg/rights"
)

// User returns the name of a node's user, which its requests impersonate.
func User(nodeName string) string { return "system:node:" + nodeName }

// SelfSubjectReviews asks who sends a request. A client-go client is one.
type SelfSubjectReviews interface {
	Create(ctx context.Context, review *authenticationv1.SelfSubjectReview, opts metav1.CreateOptions) (*authenticationv1.SelfSubjectReview, error)
}

// Pods gets the pods of one namespace. A client-go client is one.
type Pods interface {
	Get(ctx context.Context, name string, opts metav1.GetOptions) (*corev1.Pod, error)
}

// Options are what the questions need. All but Node are required.
type Options struct {
	// NodeName is the name of this node's Node object.
	NodeName string
	// Verbs are those by which ConfigMaps and Secrets are read as the node.
	Verbs []string
	// Node says that the Node itself is read as the node, too.
	Node bool
	// PodsAsNode gets pods as the node.
	PodsAsNode func(namespace string) Pods
	// Reviews, AccessReviews and Version ask as the plugin itself.
	Reviews       SelfSubjectReviews
	AccessReviews rights.SelfSubjectAccessReviews
	Version       func(context.Context) (*version.Info, error)
	// Refusals hear of requests as the plugin itself, and as the node.
	Refusals *rights.Refusals
}

func (o *Options) validate() error {
	var errs []error
	if problems := apivalidation.NameIsDNSSubdomain(o.NodeName, false); len(problems) > 0 {
		errs = append(errs, fmt.Errorf("NodeName: Invalid value: %q: no Node can have this name: %s", o.NodeName, strings.Join(problems, "; ")))
	}
	if len(o.Verbs) == 0 || o.PodsAsNode == nil || o.Reviews == nil || o.AccessReviews == nil || o.Version == nil || o.Refusals == nil {
		errs = append(errs, errors.New("Verbs, PodsAsNode, Reviews, AccessReviews, Version, Refusals: Required value"))
	}
	return errors.Join(errs...)
}

// New returns a Checker of whether the API server lets the plugin read as its node, which has asked
// nothing yet. It fails if opts are not valid.
func New(opts Options) (*rights.Checker, error) {
	if err := opts.validate(); err != nil {
		return nil, fmt.Errorf("node identity options: %w", err)
	}
	q := &questions{opts: opts, needs: needs(&opts)}
	return rights.New(rights.Options{As: "its node", Needs: rights.Names(q.needs), Ask: q.ask, Refusals: opts.Refusals})
}

// questions are those about the plugin's own token, rights and pod.
type questions struct {
	opts  Options
	needs []authorizationv1.ResourceAttributes
}

// needs returns the rights of the plugin's account.
func needs(opts *Options) []authorizationv1.ResourceAttributes {
	const onNode = "impersonate-on:associated-node:"
	all := []authorizationv1.ResourceAttributes{
		{Verb: "impersonate:associated-node", Group: authenticationv1.GroupName, Resource: "nodes", Name: opts.NodeName},
		{Verb: onNode + "get", Resource: "pods"},
	}
	all = append(all, rights.OfObjects(onNode, opts.Verbs)...)
	if opts.Node {
		all = append(all, authorizationv1.ResourceAttributes{Verb: onNode + "get", Resource: "nodes", Name: opts.NodeName})
	}
	return append(all, rights.OfEvents()...)
}
