package main

import (
	"k8s.io/client-go/rest"

	"github.com/refvol/refvol/pkg/apiclient"
	"github.com/refvol/refvol/pkg/authz"
	"github.com/refvol/refvol/pkg/backoff"
	"github.com/refvol/refvol/pkg/events"
	"github.com/refvol/refvol/pkg/manager"
	"github.com/refvol/refvol/pkg/mount"
	"github.com/refvol/refvol/pkg/podspec"
	"github.com/refvol/refvol/pkg/publisher"
)

// newPublisher makes the parts below the CSI server.
func newPublisher(opts *serveOptions, mounter *mount.Mounter, client *apiclient.Client, config *rest.Config, recorder *events.Recorder) (*manager.Manager, *publisher.Publisher, error) {
	maxVolume, maxTotal, err := opts.sizes()
	if err != nil {
		return nil, nil, err
	}
	reads := manager.Options{
		Client:         client,
		Nodes:          client.Nodes(),
		ResyncInterval: opts.resyncInterval,
		Strategy:       manager.Strategy(opts.changeDetection),
		NodeName:       opts.nodeName,
	}
	shows := publisher.Options{
		Mounts:          publisher.NewMounts(mounter),
		AttributePrefix: mounter.AttributePrefix(),
		Events:          recorder,
		Pods:            podspec.NewReader(func(namespace string) podspec.Pods { return client.Pods(namespace) }),
		CrossNamespace:  opts.crossNamespace,
		NodeName:        opts.nodeName,
		Driver:          opts.driverName,
		KubeletDir:      opts.kubeletDir,
		ResyncInterval:  opts.resyncInterval,
		PublishWait:     opts.publishWait,
		MaxVolumeSize:   maxVolume,
		MaxTotalSize:    maxTotal,
	}
	if opts.identity == identityPod {
		err = readAsPods(&reads, &shows, config)
	} else {
		err = readAsPlugin(&shows, client)
	}
	if err != nil {
		return nil, nil, err
	}
	objects, err := manager.New(reads)
	if err != nil {
		return nil, nil, err
	}
	shows.Objects = objects
	volumes, err := publisher.New(shows)
	return objects, volumes, err
}

// readAsPlugin makes the publisher show objects of other namespaces to pods whose service
// account may get them. All objects are read with the plugin's own rights.
func readAsPlugin(shows *publisher.Options, client *apiclient.Client) error {
	access, err := authz.New(authz.Options{
		Ask:    authz.AskAbout(authz.NewPaced(client.SubjectAccessReviews(), &backoff.Gate{})),
		Verbs:  []string{"get"},
		Kept:   "get",
		MaxAge: shows.ResyncInterval,
	})
	if err != nil {
		return err
	}
	shows.Access = access
	return nil
}

// readAsPods makes the manager read objects with the pods' own tokens. A new volume's pod must
// have every right that the manager's requests may need, and a mounted volume's pod must keep
// the one that the open watch, or the next request, needs.
func readAsPods(reads *manager.Options, shows *publisher.Options, config *rest.Config) error {
	tokens := &authz.Tokens{}
	client, err := newPodClient(config, tokens)
	if err != nil {
		return err
	}
	verbs := podVerbs(reads.Strategy)
	gate := &backoff.Gate{}
	access, err := authz.New(authz.Options{
		Ask:    authz.AskWith(authz.NewPaced(client.SelfSubjectAccessReviews(), gate), tokens),
		Verbs:  verbs,
		Kept:   verbs[len(verbs)-1],
		MaxAge: shows.ResyncInterval,
	})
	if err != nil {
		return err
	}
	identity := authz.NewAuthenticator(tokens, authz.NewPaced(client.SelfSubjectReviews(), gate))
	reads.Client, reads.Credentials = client, tokens
	shows.Access, shows.Identity = access, identity
	return nil
}

// podVerbs returns the rights that pods need where objects are read with their tokens. The
// last one is what the open watch, or the next request, needs.
func podVerbs(strategy manager.Strategy) []string {
	if strategy == manager.Watch {
		return []string{"get", "list", "watch"}
	}
	return []string{"get"}
}
