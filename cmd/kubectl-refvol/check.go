package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"

	"github.com/refvol/refvol/pkg/authz"
	"github.com/refvol/refvol/pkg/check"
)

// watch is the value of --change-detection for watches.
const watch = "Watch"

// checkOptions are the flags of check.
type checkOptions struct {
	cluster *clusterOptions
	files   *genericclioptions.FileNameFlags
	output  *output
	// identity and changeDetection are the flags of the plugins.
	identity        string
	changeDetection string
	live            bool
	// label is the short name of a label of a namespace, whose pods are checked instead of manifests.
	label         string
	maxVolumeSize string
}

func newCheckCommand(flags *genericclioptions.ConfigFlags) *cobra.Command {
	opts := &checkOptions{
		cluster: newClusterOptions(flags), changeDetection: watch, maxVolumeSize: "32Mi",
		files: &genericclioptions.FileNameFlags{Usage: "The manifests to check.", Filenames: &[]string{}, Kustomize: new(string), Recursive: new(bool)},
	}
	cmd := &cobra.Command{
		Use:   "check (-f FILENAME | -k DIRECTORY | --label=restart|live -n NAMESPACE)",
		Short: "Validate manifests and list the ConfigMaps and Secrets that they reference",
		Long: `The command validates refvol's volumes in the Pods and pod templates of manifests, and lists every ConfigMap
and Secret that these reference. With --live it asks the API server which of the objects exist, and
whether the pods' service account may get them. It changes nothing, and prints no value of an object.

With --label the command says what this label of the namespace would change (docs/apply.md#by-a-label,
docs/live-namespaces.md), and which of its pods could not start then. It sends a similar pod for each of them
to the API server as a dry run.

The exit status is:
  0  There is no problem.
  1  There is a problem.
  2  The answer is not known: a file can't be read, the API server does not answer or refuses a pod even
     without the label, the label's component is not installed, or the command line is wrong.`,
		Example: `  # A file, all files below a directory, or a kustomization
  kubectl refvol check -f app.yaml
  kubectl refvol check -R -f manifests/
  kubectl refvol check -k overlays/production

  # What a chart renders, for plugins that run with --identity=node
  helm template shop ./chart | kubectl refvol check --identity=node -f -

  # Do the objects exist, and may the pods' service account get them?
  kubectl refvol check --live --identity=pod -n shop -f app.yaml

  # What would the label refvol.dev/restart=true change in a namespace, or refvol.dev/live=true?
  kubectl refvol check --label=restart -n shop
  kubectl refvol check --label=live -n shop`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return opts.run(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
	opts.output = newOutput(cmd)
	fs := cmd.Flags()
	opts.files.AddFlags(fs)
	fs.Lookup("recursive").Usage = "If true, the command also reads the directories below those of -f."
	fs.StringVar(&opts.cluster.driver, "driver-name", opts.cluster.driver, "The name of the CSI driver, as in the CSIDriver object.")
	fs.StringVar(&opts.identity, "identity", opts.identity, "The --identity of the plugins. Without the flag, the command warns of what one of the identities would refuse.")
	fs.StringVar(&opts.changeDetection, "change-detection", opts.changeDetection, "The --change-detection of the plugins.")
	fs.BoolVar(&opts.live, "live", opts.live, "If true, the command asks the API server which objects exist, and which service accounts may get them.")
	fs.StringVar(&opts.maxVolumeSize, "max-volume-size", opts.maxVolumeSize, "The --max-volume-size of the plugins, for --label=live.")
	fs.StringVar(&opts.label, "label", opts.label, "The label whose effect on the namespace's pods is checked. One of: (restart, live).")
	return cmd
}

func (o *checkOptions) validate() error {
	for _, flag := range []struct {
		name, value string
		supported   []string
	}{
		{"identity", cmp.Or(o.identity, authz.IdentityPlugin), []string{authz.IdentityPlugin, authz.IdentityPod, authz.IdentityNode}},
		{"change-detection", o.changeDetection, []string{watch, "Cache", "Get"}},
	} {
		if !slices.Contains(flag.supported, flag.value) {
			return fmt.Errorf("--%s: %q is none of %s", flag.name, flag.value, strings.Join(flag.supported, ", "))
		}
	}
	files := o.files.ToOptions()
	switch {
	case o.cluster.driver == "":
		return errors.New("--driver-name must not be empty")
	case o.label != "":
		return cmp.Or(o.validateLabel(), o.output.validate())
	case len(files.Filenames) == 0 && files.Kustomize == "":
		return errors.New("must specify one of -f, -k and --label (--label=live -n NAMESPACE checks a live label)")
	case files.Kustomize != "" && (len(files.Filenames) > 0 || files.Recursive):
		return errors.New("the -k flag can't be used with -f or -R")
	}
	return o.output.validate()
}

// run checks all files, prints the report, and fails if it has a problem.
func (o *checkOptions) run(ctx context.Context, stdin io.Reader, stdout io.Writer) error {
	if err := o.validate(); err != nil {
		return err
	}
	checker, c, err := o.checker()
	if err != nil {
		return err
	}
	if o.label != "" {
		return o.checkLabel(ctx, c, checker, stdout)
	}
	if err := eachInput(ctx, o.files.ToOptions(), stdin, func(name string, text io.Reader) error {
		return checker.Add(ctx, name, text)
	}); err != nil {
		return err
	}
	report := checker.Report()
	if err := o.print(stdout, report); err != nil {
		return err
	}
	switch n := len(report.Problems); n {
	case 0:
		return nil
	case 1:
		return &statusError{errors.New("check: 1 problem"), no}
	default:
		return &statusError{fmt.Errorf("check: %d problems", n), no}
	}
}

// print writes a report in the format of -o.
func (o *checkOptions) print(w io.Writer, report interface{ WriteText(w io.Writer) error }) error {
	var err error
	if o.output.isText() {
		err = report.WriteText(w)
	} else {
		err = o.output.write(w, report)
	}
	if err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	return nil
}

// checker returns a Checker for the flags. The cluster is nil without --live and --label.
func (o *checkOptions) checker() (*check.Checker, *cluster, error) {
	namespace, _, err := o.cluster.flags.ToRawKubeConfigLoader().Namespace()
	if err != nil {
		return nil, nil, fmt.Errorf("find the kubeconfig's namespace: %w", err)
	}
	opts := check.Options{Driver: o.cluster.driver, Namespace: namespace, NodeIdentity: o.identity == authz.IdentityNode, AnyIdentity: o.identity == ""}
	if o.identity == authz.IdentityPod {
		opts.PodVerbs = authz.PodVerbs(o.changeDetection == watch)
	}
	var c *cluster
	if o.live || o.label != "" {
		if c, err = o.cluster.connect(); err != nil {
			return nil, nil, err
		}
		core := c.client.CoreV1()
		opts.Cluster = &check.APIServer{
			ConfigMaps: func(namespace string) check.ConfigMaps { return core.ConfigMaps(namespace) },
			Secrets:    func(namespace string) check.Secrets { return core.Secrets(namespace) },
			Reviews:    c.client.AuthorizationV1().SubjectAccessReviews(),
		}
	}
	checker, err := check.New(opts)
	return checker, c, err
}
