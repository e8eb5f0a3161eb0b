package main

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/refvol/refvol/pkg/access"
	"github.com/refvol/refvol/pkg/apiclient"
	"github.com/refvol/refvol/pkg/authz"
	"github.com/refvol/refvol/pkg/events"
	"github.com/refvol/refvol/pkg/loglimit"
	"github.com/refvol/refvol/pkg/manager"
	"github.com/refvol/refvol/pkg/metrics"
	"github.com/refvol/refvol/pkg/mount"
	"github.com/refvol/refvol/pkg/permissions"
	"github.com/refvol/refvol/pkg/pod"
	"github.com/refvol/refvol/pkg/publisher"
	"github.com/refvol/refvol/pkg/receipts"
	"github.com/refvol/refvol/pkg/requests"
	"github.com/refvol/refvol/pkg/volume"
)

// parts are the parts below the CSI server.
type parts struct {
	objects *manager.Manager
	volumes *publisher.Publisher
	rights  *permissions.Checker
	// opens is nil if opens of files are not watched.
	opens *receipts.Group
}

// connections are the connections to the API server, with the plugin's own credential.
type connections struct {
	config *rest.Config
	client *apiclient.Client
	// requests paces the requests of all clients.
	requests *requests.Requests
}

// newParts returns the parts below the CSI server. notShared is as in publisher.Options.
func newParts(ctx context.Context, opts *serveOptions, mounter *mount.Mounter, notShared func() error, api connections, recorder *events.Recorder, m *metrics.Metrics, logLimit *loglimit.Limiter) (*parts, error) {
	sizes, err := opts.sizes()
	if err != nil {
		return nil, err
	}
	// Watches have their own connections, here and below. On shared connections, short requests would often find them full of streams, and
	// open and drop a connection each time.
	watches, err := newClient(api.config, api.requests)
	if err != nil {
		return nil, err
	}
	reads := manager.Options{
		Observer:        m,
		Client:          watches,
		Requests:        api.requests,
		Nodes:           api.client.Nodes(),
		ResyncInterval:  opts.resyncInterval,
		ChangeDetection: manager.ChangeDetection(opts.changeDetection),
		NodeName:        opts.nodeName,
		MaxCachedSize:   sizes.cached,
		LogLimit:        logLimit,
	}
	shows := publisher.Options{
		Mounts:          publisher.NewMounts(mounter),
		NotShared:       notShared,
		AttributePrefix: mounter.AttributePrefix(),
		Events:          recorder,
		Observer:        m,
		LogLimit:        logLimit,
		Pods:            pod.NewReader(func(namespace string) pod.Pods { return api.client.Pods(namespace) }),
		CrossNamespace:  opts.crossNamespace,
		NodeName:        opts.nodeName,
		Driver:          opts.driverName,
		KubeletDir:      opts.kubeletDir,
		ResyncInterval:  opts.resyncInterval,
		DefaultSpread:   opts.defaultSpread,
		PublishWait:     opts.publishWait,
		MaxVolumeSize:   sizes.perVolume,
		MaxTotalSize:    sizes.total,
	}
	p := &parts{}
	if opts.openReceipts {
		if p.opens, err = newOpens(ctx, mounter, func() { p.volumes.OpensLost() }); err != nil {
			klog.FromContext(ctx).Error(err, "Opens of files can't be watched, so there are no receipts")
		} else {
			shows.Opens = p.opens
		}
	}
	switch opts.identity {
	case authz.IdentityPod:
		p.rights, err = readAsPods(&reads, &shows, api, m)
	case authz.IdentityNode:
		p.rights, err = readAsNode(&reads, &shows, api)
	case authz.IdentityPlugin:
		p.rights, err = readAsPlugin(&reads, &shows, api, m)
	default:
		err = fmt.Errorf("--identity=%s: nothing reads that way", opts.identity)
	}
	if err != nil {
		return nil, err
	}
	if p.objects, err = manager.New(reads); err != nil {
		return nil, err
	}
	shows.Objects = p.objects
	if p.volumes, err = publisher.New(shows); err != nil {
		return nil, err
	}
	if err := m.ShowRights(p.rights.Rights(), p.rights.Missing); err != nil {
		return nil, err
	}
	return p, m.Show(metrics.State{
		Volumes: p.volumes.Volumes, Objects: p.objects.Objects, MaxBytes: sizes.total,
		CachedBytes: p.objects.CachedBytes, MaxCachedBytes: sizes.cached,
	})
}

// newOpens returns the watch of opened files, if this kernel allows it. It calls lost when opens may have been missed.
func newOpens(ctx context.Context, mounter *mount.Mounter, lost func()) (*receipts.Group, error) {
	v, err := mounter.Create(ctx, mount.Params{VolumeID: "probe", Size: 4096, Inodes: 8, Mode: 0o700, UID: volume.NoOwner, GID: volume.NoOwner})
	if err != nil {
		return nil, err
	}
	dir, err := v.Root().Open(".")
	if err != nil {
		return nil, errors.Join(err, v.Close())
	}
	err = receipts.Probe(int(dir.Fd()))
	if errors.Is(err, unix.EMFILE) { // others may hold all groups; each volume tries again
		klog.FromContext(ctx).Error(err, "Opens of files can't be watched yet")
		err = nil
	}
	if err := errors.Join(err, dir.Close(), v.Close()); err != nil {
		return nil, err
	}
	return receipts.New(lost), nil
}

// readAsPlugin makes the manager read all objects with the plugin's own rights, and the publisher show objects of other namespaces to pods
// whose service account may get them. The returned checker checks the plugin's rights.
func readAsPlugin(reads *manager.Options, shows *publisher.Options, api connections, m *metrics.Metrics) (*permissions.Checker, error) {
	ask := authz.AskAbout(api.client.SubjectAccessReviews())
	shows.Reviews = &access.Reviews{Ask: observeReviews(m, ask), Verbs: []string{"get"}}
	var needs []authorizationv1.ResourceAttributes
	for _, kind := range volume.Kinds() {
		for _, verb := range readVerbs(reads.ChangeDetection) {
			needs = append(needs, authorizationv1.ResourceAttributes{Verb: verb, Resource: kind.Resource()})
		}
	}
	if reads.ChangeDetection == manager.Cache {
		needs = append(needs, authorizationv1.ResourceAttributes{Verb: "get", Resource: "nodes", Name: reads.NodeName})
	}
	if shows.CrossNamespace {
		needs = append(needs, authorizationv1.ResourceAttributes{Verb: "create", Group: authorizationv1.GroupName, Resource: "subjectaccessreviews"})
	}
	return checker(authz.IdentityPlugin, append(needs, podRights()), nil, api)
}

// checker returns a checker of the plugin's rights for an identity. node is nil except for --identity=node.
func checker(identity string, needs []authorizationv1.ResourceAttributes, node *permissions.Node, api connections) (*permissions.Checker, error) {
	return permissions.New(permissions.Options{
		Identity: identity, Needs: needs, Wants: eventRights(), Reviews: api.client.SelfSubjectAccessReviews(), Node: node, Refused: api.requests.Refused(),
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

// readAsNode makes the plugin read all objects, and the pods, with the rights of the node. The returned checker checks whether the API
// server allows that.
func readAsNode(reads *manager.Options, shows *publisher.Options, api connections) (*permissions.Checker, error) {
	asNode, err := newNodeClient(api.config, reads.NodeName, api.requests)
	if err != nil {
		return nil, err
	}
	if reads.Client, err = newNodeClient(api.config, reads.NodeName, api.requests); err != nil {
		return nil, err
	}
	reads.Nodes, reads.RefusalsPass = asNode.Nodes(), true
	shows.NodeRights = true
	shows.Pods = pod.NewReader(func(namespace string) pod.Pods { return asNode.Pods(namespace) })
	needs := append([]authorizationv1.ResourceAttributes{permissions.Impersonation(reads.NodeName)}, permissions.OnNode("pods", "", "get")...)
	for _, kind := range volume.Kinds() {
		needs = append(needs, permissions.OnNode(kind.Resource(), "", readVerbs(reads.ChangeDetection)...)...)
	}
	if reads.ChangeDetection == manager.Cache {
		needs = append(needs, permissions.OnNode("nodes", reads.NodeName, "get")...)
	}
	return checker(authz.IdentityNode, needs, &permissions.Node{
		Name:    reads.NodeName,
		Pods:    func(namespace string) permissions.Pods { return asNode.Pods(namespace) },
		Reviews: api.client.SelfSubjectReviews(),
	}, api)
}

// readAsPods makes the manager read objects with the pods' own tokens. The pod of a new volume must have every right that the manager's
// requests may need. The pod of a mounted volume must keep the one that the open watch, or the next request, needs. The returned checker
// checks the few rights that the plugin's own account still needs.
func readAsPods(reads *manager.Options, shows *publisher.Options, api connections, m *metrics.Metrics) (*permissions.Checker, error) {
	tokens := &authz.Tokens{}
	client, err := newPodClient(api.config, tokens, api.requests)
	if err != nil {
		return nil, err
	}
	verbs := authz.PodVerbs(reads.ChangeDetection == manager.Watch)
	ask := authz.AskWith(client.SelfSubjectAccessReviews(), tokens)
	if reads.Client, err = newPodClient(api.config, tokens, api.requests); err != nil {
		return nil, err
	}
	reads.Accounts = true
	shows.Reviews, shows.Identity = &access.Reviews{Ask: observeReviews(m, ask), Verbs: verbs}, tokens
	return checker(authz.IdentityPod, []authorizationv1.ResourceAttributes{podRights()}, nil, api)
}

// observeReviews reports access reviews to the metrics.
func observeReviews(m *metrics.Metrics, ask authz.Ask) authz.Ask {
	return func(ctx context.Context, account volume.ServiceAccount, ref volume.Ref, verb string, token volume.Token) (bool, error) {
		allowed, err := ask(ctx, account, ref, verb, token)
		m.Reviewed(allowed, err)
		return allowed, err
	}
}
