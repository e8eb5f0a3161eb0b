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

// watch is the value of --change-detection with which objects are watched.
const watch = "Watch"

// checkOptions are the flags of `check`.
type checkOptions struct {
	cluster *clusterOptions
	files   *genericclioptions.FileNameFlags
	output  *output
	// identity and changeDetection are those of the plugins.
	identity        string
	changeDetection string
	live            bool
}

func newCheckCommand(flags *genericclioptions.ConfigFlags) *cobra.Command {
	opts := &checkOptions{
		cluster: newClusterOptions(flags), changeDetection: watch,
		files: &genericclioptions.FileNameFlags{Usage: "manifests to check", Filenames: &[]string{}, Kustomize: new(string), Recursive: new(bool)},
	}
	cmd := &cobra.Command{
		Use:   "check (-f FILENAME | -k DIRECTORY)",
		Short: "Validate manifests and list the ConfigMaps and Secrets that they reference",
		Long: `Validates the attributes of refvol's volumes in the Pods and pod templates of manifests,
and lists every ConfigMap and Secret that they reference, with the path of the field. With
--live it asks the API server which of these exist and whether the pods' service account may
get them. It changes nothing and prints no value.

Exits with status 0 if all is well, 1 if it finds a problem, and 2 if that is not known: a file can't be
read, the API server does not answer, or the command line is wrong.`,
		Example: `  # A file, all files below a directory, or a kustomization
  kubectl refvol check -f app.yaml
  kubectl refvol check -R -f manifests/
  kubectl refvol check -k overlays/production

  # What a chart renders, for plugins that run with --identity=node
  helm template shop ./chart | kubectl refvol check --identity=node -f -

  # Do the objects exist, and may the pods' service account get them?
  kubectl refvol check --live --identity=pod -n shop -f app.yaml`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return opts.run(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
	opts.output = newOutput(cmd)
	fs := cmd.Flags()
	opts.files.AddFlags(fs)
	fs.StringVar(&opts.cluster.driver, "driver-name", opts.cluster.driver, "name of the CSI driver, as in the CSIDriver object")
	fs.StringVar(&opts.identity, "identity", opts.identity, "the --identity of the plugins: with pod, the service account needs a right to whatever its pods' volumes show; with node, the pod's spec must name that itself; without the flag, what one of them would refuse is a warning")
	fs.StringVar(&opts.changeDetection, "change-detection", opts.changeDetection, "the --change-detection of the plugins: with --identity=pod, Watch takes the rights get, list and watch, Cache and Get take get only")
	fs.BoolVar(&opts.live, "live", opts.live, "ask the API server which objects exist and who may get them")
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
	case len(files.Filenames) == 0 && files.Kustomize == "":
		return errors.New("must specify one of -f and -k")
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
	checker, err := o.checker()
	if err != nil {
		return err
	}
	if err := eachInput(ctx, o.files.ToOptions(), stdin, func(name string, text io.Reader) error {
		return checker.Add(ctx, name, text)
	}); err != nil {
		return err
	}
	report := checker.Report()
	if o.output.isOwn() {
		err = report.WriteText(stdout)
	} else {
		err = o.output.write(stdout, report)
	}
	if err != nil {
		return fmt.Errorf("write the report: %w", err)
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

// checker makes what the flags ask for.
func (o *checkOptions) checker() (*check.Checker, error) {
	namespace, _, err := o.cluster.flags.ToRawKubeConfigLoader().Namespace()
	if err != nil {
		return nil, fmt.Errorf("find the kubeconfig's namespace: %w", err)
	}
	opts := check.Options{Driver: o.cluster.driver, Namespace: namespace, NodeIdentity: o.identity == authz.IdentityNode, AnyIdentity: o.identity == ""}
	if o.identity == authz.IdentityPod {
		opts.PodVerbs = authz.PodVerbs(o.changeDetection == watch)
	}
	if o.live {
		c, err := o.cluster.connect()
		if err != nil {
			return nil, err
		}
		core := c.client.CoreV1()
		opts.Cluster = &check.APIServer{
			ConfigMaps: func(namespace string) check.ConfigMaps { return core.ConfigMaps(namespace) },
			Secrets:    func(namespace string) check.Secrets { return core.Secrets(namespace) },
			Reviews:    c.client.AuthorizationV1().SubjectAccessReviews(),
		}
	}
	return check.New(opts)
}
