package node

import (
	"context"
	"fmt"

	authorizationv1 "k8s.io/api/authorization/v1"

	"github.com/refvol/refvol/pkg/access"
	"github.com/refvol/refvol/pkg/authz"
	"github.com/refvol/refvol/pkg/manager"
	"github.com/refvol/refvol/pkg/metrics"
	"github.com/refvol/refvol/pkg/permissions"
	"github.com/refvol/refvol/pkg/pod"
	"github.com/refvol/refvol/pkg/publisher"
	"github.com/refvol/refvol/pkg/volume"
)

// wiring is the state of New.
type wiring struct {
	settings Settings
	system   System
	reads    manager.Options
	shows    publisher.Options
}

// readAs sets with whose rights objects are read. The returned checker checks what the plugin's own account needs for that.
func (w *wiring) readAs(identity string) (*permissions.Checker, error) {
	switch identity {
	case authz.IdentityPod:
		return w.readAsPods()
	case authz.IdentityNode:
		return w.readAsNode()
	case authz.IdentityPlugin:
		return w.readAsPlugin()
	}
	return nil, fmt.Errorf("--identity=%s: nothing reads that way", identity)
}

// readAsPlugin makes the manager read all objects with the plugin's own rights, and the publisher show objects of other namespaces to pods
// whose service account may get them. The checker checks the plugin's rights.
func (w *wiring) readAsPlugin() (*permissions.Checker, error) {
	ask := authz.AskAbout(w.system.Client.SubjectAccessReviews())
	w.shows.Reviews = &access.Reviews{Ask: observeReviews(w.system.Metrics, ask), Verbs: []string{"get"}}
	var needs []authorizationv1.ResourceAttributes
	for _, kind := range volume.Kinds() {
		for _, verb := range readVerbs(w.settings.ChangeDetection) {
			needs = append(needs, authorizationv1.ResourceAttributes{Verb: verb, Resource: kind.Resource()})
		}
	}
	if w.settings.ChangeDetection == manager.Cache {
		needs = append(needs, authorizationv1.ResourceAttributes{Verb: "get", Resource: "nodes", Name: w.settings.NodeName})
	}
	if w.settings.CrossNamespace {
		needs = append(needs, authorizationv1.ResourceAttributes{Verb: "create", Group: authorizationv1.GroupName, Resource: "subjectaccessreviews"})
	}
	return w.checker(append(needs, podRights()), nil)
}

// readAsNode makes the plugin read all objects, and the pods, with the rights of the node. The checker checks whether the API server allows
// that.
func (w *wiring) readAsNode() (*permissions.Checker, error) {
	name := w.settings.NodeName
	asNode, err := w.system.Clients.AsNode(name)
	if err != nil {
		return nil, err
	}
	if w.reads.Client, err = w.system.Clients.AsNode(name); err != nil {
		return nil, err
	}
	w.reads.Nodes, w.reads.RefusalsPass = asNode.Nodes(), true
	w.shows.NodeRights = true
	w.shows.Pods = pod.NewReader(func(namespace string) pod.Pods { return asNode.Pods(namespace) })
	needs := append([]authorizationv1.ResourceAttributes{permissions.Impersonation(name)}, permissions.OnNode("pods", "", "get")...)
	for _, kind := range volume.Kinds() {
		needs = append(needs, permissions.OnNode(kind.Resource(), "", readVerbs(w.settings.ChangeDetection)...)...)
	}
	if w.settings.ChangeDetection == manager.Cache {
		needs = append(needs, permissions.OnNode("nodes", name, "get")...)
	}
	return w.checker(needs, &permissions.Node{
		Name:    name,
		Pods:    func(namespace string) permissions.Pods { return asNode.Pods(namespace) },
		Reviews: w.system.Client.SelfSubjectReviews(),
	})
}

// readAsPods makes the manager read objects with the pods' own tokens. The pod of a new volume must have every right that the manager's
// requests may need. The pod of a mounted volume must keep the one that the open watch, or the next request, needs. The checker checks the
// few rights that the plugin's own account still needs.
func (w *wiring) readAsPods() (*permissions.Checker, error) {
	tokens := &authz.Tokens{}
	client, err := w.system.Clients.WithTokens(tokens)
	if err != nil {
		return nil, err
	}
	if w.reads.Client, err = w.system.Clients.WithTokens(tokens); err != nil {
		return nil, err
	}
	w.reads.Accounts = true
	ask := authz.AskWith(client.SelfSubjectAccessReviews(), tokens)
	w.shows.Reviews = &access.Reviews{Ask: observeReviews(w.system.Metrics, ask), Verbs: authz.PodVerbs(w.settings.ChangeDetection == manager.Watch)}
	w.shows.Identity = tokens
	return w.checker([]authorizationv1.ResourceAttributes{podRights()}, nil)
}

// checker returns a checker of the plugin's rights. node is nil except for the node's identity.
func (w *wiring) checker(needs []authorizationv1.ResourceAttributes, node *permissions.Node) (*permissions.Checker, error) {
	return permissions.New(permissions.Options{
		Identity: w.settings.Identity, Needs: needs, Wants: eventRights(), Reviews: w.system.Client.SelfSubjectAccessReviews(), Node: node,
		Refused: w.system.Requests.Refused(),
	})
}

// podRights returns the right to read pods, which the plugin's account needs unless it uses the node's rights.
func podRights() authorizationv1.ResourceAttributes {
	return authorizationv1.ResourceAttributes{Verb: "get", Resource: "pods"}
}

// eventRights returns the rights to write events in all namespaces. Volumes work without them.
func eventRights() []authorizationv1.ResourceAttributes {
	return []authorizationv1.ResourceAttributes{{Verb: "create", Resource: "events"}, {Verb: "patch", Resource: "events"}}
}

// readVerbs returns the verbs that the manager needs to read objects, unless it reads with pods' tokens.
func readVerbs(detection manager.ChangeDetection) []string {
	if detection == manager.Watch {
		return []string{"list", "watch"}
	}
	return []string{"get"}
}

// observeReviews reports access reviews to the metrics.
func observeReviews(m *metrics.Metrics, ask authz.Ask) authz.Ask {
	return func(ctx context.Context, account volume.ServiceAccount, ref volume.Ref, verb string, token volume.Token) (bool, error) {
		allowed, err := ask(ctx, account, ref, verb, token)
		m.Reviewed(allowed, err)
		return allowed, err
	}
}
