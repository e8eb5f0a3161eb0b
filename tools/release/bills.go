package main

import (
	"bytes"
	"debug/buildinfo"
	"fmt"
	"path/filepath"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

const ownModule = "github.com/refvol/refvol"

// writeBills writes for each binary what is in it, in the form of CycloneDX: the modules that the
// binary itself names. There is neither a time nor a random number in it.
func writeBills(o *options, dir string, built []binary) error {
	for _, b := range built {
		bill, err := billOf(o, b)
		if err != nil {
			return err
		}
		var text bytes.Buffer
		if err := cdx.NewBOMEncoder(&text, cdx.BOMFileFormatJSON).SetPretty(true).EncodeVersion(bill, cdx.SpecVersion1_6); err != nil {
			return err
		}
		if err := write(dir, filepath.Base(b.path)+".cdx.json", text.Bytes()); err != nil {
			return err
		}
	}
	return nil
}

func billOf(o *options, b binary) (*cdx.BOM, error) {
	info, err := buildinfo.ReadFile(b.path)
	if err != nil {
		return nil, err
	}
	main := cdx.Component{
		// The bills of two architectures are attested for one image: the name tells them apart.
		BOMRef: "pkg:golang/" + info.Main.Path + "@" + o.version + "?goarch=" + b.arch + "&goos=" + b.os + "&type=package#cmd/" + b.name,
		Type:   cdx.ComponentTypeApplication, Name: b.name, Version: o.version,
	}
	main.PackageURL = main.BOMRef
	components := []cdx.Component{module("stdlib", strings.TrimPrefix(info.GoVersion, "go"))}
	for _, dependency := range info.Deps {
		if dependency.Path == ownModule {
			// A module of the same commit takes it from there.
			components = append(components, module(ownModule, o.version))
			continue
		}
		if dependency.Replace != nil {
			return nil, fmt.Errorf("%s is replaced by %s, for which no reader of the bill can look", dependency.Path, dependency.Replace.Path)
		}
		components = append(components, module(dependency.Path, dependency.Version))
	}
	bill := cdx.NewBOM()
	bill.Metadata = &cdx.Metadata{Component: &main}
	bill.Components = &components
	refs := make([]string, len(components))
	for i := range components {
		refs[i] = components[i].BOMRef
	}
	bill.Dependencies = &[]cdx.Dependency{{Ref: main.BOMRef, Dependencies: &refs}}
	return bill, nil
}

func module(path, version string) cdx.Component {
	url := "pkg:golang/" + path + "@" + version
	return cdx.Component{BOMRef: url, PackageURL: url, Type: cdx.ComponentTypeLibrary, Name: path, Version: version, Scope: cdx.ScopeRequired}
}
