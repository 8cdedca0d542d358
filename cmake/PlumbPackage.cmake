# `cpack --config build/release/CPackConfig.cmake`: a Debian package with the program, its unit, its configuration, its
# own user, the documents and the dashboard. Included last, after every target.
set(CMAKE_SKIP_INSTALL_ALL_DEPENDENCY ON)  # packing needs the program, not the tests

install(FILES ${CMAKE_SOURCE_DIR}/deploy/plumb.service DESTINATION lib/systemd/system)
install(FILES ${CMAKE_SOURCE_DIR}/deploy/plumb.conf DESTINATION /etc/plumb)
install(FILES ${CMAKE_SOURCE_DIR}/README.md DESTINATION share/doc/plumb)
install(FILES ${CMAKE_SOURCE_DIR}/LICENSE DESTINATION share/doc/plumb RENAME copyright)
install(DIRECTORY ${CMAKE_SOURCE_DIR}/docs/ DESTINATION share/doc/plumb FILES_MATCHING PATTERN "*.md")
install(FILES ${CMAKE_SOURCE_DIR}/deploy/grafana-plumb.json DESTINATION share/plumb)

set(scripts ${CMAKE_SOURCE_DIR}/deploy/debian)
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME plumb)
set(CPACK_PACKAGE_VENDOR "the plumb project")
set(CPACK_PACKAGE_CONTACT "the plumb project <plumb@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "inference server for GLM-5-class models")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION net)
set(CPACK_DEBIAN_PACKAGE_DEPENDS adduser)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA ${scripts}/postinst ${scripts}/prerm ${scripts}/postrm ${scripts}/conffiles)
include(CPack)
